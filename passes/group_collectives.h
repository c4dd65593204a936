#pragma once
// group-collectives: a collective, its waits and what touches its buffers in between share one fate. So do a
// copy to the host or back that goes on behind its node (ir/facts/transfer.h) and its wait.
//
// Terms. Collective: a node that starts communication, or such a copy, and leaves it open (leavesOpen).
//   Span, wait, clash: those of ir/memory/storage_accesses.h. Fate: a set of nodes that are captured
//   together, in one partition, or not at all.
// Before: host reasons as classify-capturability wrote them.
// After: fate=N, dense from 0 in the order of first members, on each collective, on each wait for it, and
//   on each node that clashes with it: that reads or writes its results, or writes its operands, before
//   it has been waited for. If a member is a host node, or if a host node stands between two members so
//   that it can be moved past neither, all members are host nodes: host="open-collective".
//   One Missed remark a node that this made a host node, one Passed remark ("collective-whole") a fate
//   that stays capturable.
// Complexity: linear in nodes plus edges; each fate that other host nodes may pull apart adds the
//   nodes from its first member to its last.
// Refuses: nothing; verifyProgram has found collectives without a wait.

#include "passes/pass.h"

namespace gravure {

void groupCollectives(Program& program, PassContext& context);
/// Fates are dense; each node that must belong to one does; a fate is all host or all capturable, and
/// no host node pulls a capturable one apart.
void verifyGroupCollectives(const Program& program, const PassContext& context);

}  // namespace gravure
