#pragma once
// group-collectives: a collective, its waits and what touches its buffers in between share one fate.
//
// Terms. Collective: a node that starts communication (facts.collective). Open: from its start until
//   each of its results has been waited for. It touches its buffers: its results, what it writes
//   (out-variants, in-place forms) and its operands. Fate: a set of nodes that are captured together,
//   in one partition, or not at all.
// Before: host reasons as classify-capturability wrote them.
// After: fate=N, dense from 0 in the order of first members, on each collective, on each wait that
//   ends it, on each node that reads or writes its results while it is open, and on each node that
//   writes one of its operands then. If a member is a host node, or if a host node stands between two
//   members so that it can be moved past neither, all members are host nodes: host="open-collective".
//   One Missed remark a node that this made a host node, one Passed remark ("collective-whole") a fate
//   that stays capturable.
// Complexity: linear in nodes plus edges; each fate that other host nodes may pull apart adds its
//   stretch of the program.
// Refuses: nothing; verifyProgram has found collectives without a wait.

#include "passes/pass.h"

namespace gravure {

void groupCollectives(Program& program, PassContext& context);
/// Fates are dense; each node that must belong to one does; a fate is all host or all capturable, and
/// no host node pulls a capturable one apart.
void verifyGroupCollectives(const Program& program, const PassContext& context);

}  // namespace gravure
