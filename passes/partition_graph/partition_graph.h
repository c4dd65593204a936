#pragma once
// partition-graph: the planned captured sections become cudagraph::partition nodes.
//
// Terms. Boundary value: one that crosses a partition's edge. Boundary operand, parameter, result: see
//   ir/core/cudagraph_ops.h. partition_plan.h has the rest.
// Before: host= and fate= as classify-capturability and group-collectives wrote them; no
//   cudagraph::partition.
// After: the statements of each entry stand in the planned order, and each captured section is
//     %x.out : T, … = cudagraph::partition[index=I](%a, …)
//       block0(%a.pI : T, …): … -> (%x, …)
//   with `index` dense over the whole program, an operand for each value used from outside, a result
//   for each value used outside or returned, views among them. Blocks see only their parameters.
//   Values inside keep their names, anonymous values stay anonymous. Nodes that the plan keeps on the
//   host carry host="too-small" or host="open-collective".
//   Remarks: one Analysis an entry ("partition-plan"), one Passed a partition ("partition-formed"), one
//   Missed a node kept on the host, named as the reason, and "levels-refused" where levels were wished
//   for and program order was taken.
// Complexity: the plan's, and linear in nodes plus edges for the rewrite (a value used in k partitions
//   adds its uses times log k).
// Refuses: nothing; every verified program has a plan, if only one without partitions.

#include "passes/partition_graph/partition_plan.h"

namespace gravure {

void partitionGraph(Program& program, PassContext& context);
/// Each capturable node is in a partition and no other; partitions are numbered in order, see only
/// their parameters, list each operand once, and hold at least one operator call; no fate is split.
void verifyPartitionGraph(const Program& program, const PassContext& context);

/// Carries out `plan` on the entry that it was made for. Partitions are numbered from `firstIndex`.
void applyPlan(Entry& entry, const PartitionPlan& plan, int64_t firstIndex);

}  // namespace gravure
