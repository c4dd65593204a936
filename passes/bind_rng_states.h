#pragma once
// bind-rng-states: every node that draws takes the RNG state it draws from as an explicit operand.
//
// Terms. Default generator: the one that a random node draws from when nothing else is said. Paired
//   state: `rng_state "cuda:0#1"`, which a forward and its recomputation both take, so that a recomputed
//   dropout repeats its mask wherever the two land. Saved state: a Tensor that holds one.
// Before: tags as tag-static-inputs wrote them. A random node has `rng(…)` or draws from its device's
//   default generator.
//     graph step(%x : …):
//       %y.out : T = cudagraph::partition[index=0, tags=["staged: user input"]](%x)
//         block0(%x.p0 : T):
//           %y : T, %m : … = aten::native_dropout(%x.p0, 0.1, True)
//           -> (%y)
// After: one more input an entry and device, and `rng(…)` on each random node. A partition with such
//   nodes takes the state as its last operand, tagged.
//     graph step(%x : …, %rng.cuda0 : Generator {rng_state "cuda:0"}):
//       %y.out : T = cudagraph::partition[index=0, tags=["staged: user input", "rng: cuda:0"]](%x, %rng.cuda0)
//         block0(%x.p0 : T, %rng.cuda0.p0 : Generator):
//           %y : T, %m : … = aten::native_dropout(%x.p0, 0.1, True) rng(%rng.cuda0.p0)
//           -> (%y)
//   What has `rng(…)` is left as it is. An input `rng_state "cuda:0"` that the entry has is used.
//   One Passed remark ("rng-state-bound") an entry and device.
// Complexity: linear in nodes plus edges.
// Refuses: a random node inside a partition that draws from a saved state; a replay cannot set one.

#include "passes/pass.h"

namespace gravure {

void bindRngStates(Program& program, PassContext& context);
/// Every node that draws has a state; inside a partition it is a Generator that comes in as an operand
/// tagged `rng`; no two inputs of an entry are the same RNG state.
void verifyBindRngStates(const Program& program, const PassContext& context);

}  // namespace gravure
