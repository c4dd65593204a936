#pragma once
// emit-runtime-calls: partitions become launches, with copies in before and copies out after.
//
// Terms. Result: what an entry returns as loss, gradient or output (or without a role), and a saved
//   value that no entry of the program reads.
// Before: partitions tagged and planned.
//     graph step(%w : … {parameter "w"}, %x : … {user_input "x"}):
//       %y.out : T = cudagraph::partition[index=0, tags=["static: parameter", "staged: user input"],
//                                         staging=[-1, 0]](%w, %x)
//         block0(…): … -> (%y)
//       return (%y.out {loss})
// After:
//       %x.staged : … = cudagraph::stage[arena=[0]](%x)
//       %y.out : T = cudagraph::launch[index=0, tags=[…]](%w, %x.staged)
//         block0(…): … -> (%y)
//       %y.out.own : T = cudagraph::own(%y.out)
//       return (%y.out.own {loss})
//   One stage node at the top of an entry copies all staged inputs; what else is staged is copied right
//   before the first partition that takes it. One own node before the return moves the results out of
//   the arena, each once; the runtime passes on what does not lie there. Not moved: inputs that are
//   returned as they came, mutations and aliases (the caller's own tensors), saved values (lent until
//   `backward` has read them), numbers, and tensors of another device.
//   No remarks. A program without partitions gets only its own nodes.
// Complexity: linear in nodes plus edges.
// Refuses: a partition without tags.

#include "passes/pass.h"

namespace gravure {

void emitRuntimeCalls(Program& program, PassContext& context);
/// No partition is left; a launch's operand comes from a stage node if and only if its tag says so;
/// every result in the arena is moved out; the memory plan still holds.
void verifyEmitRuntimeCalls(const Program& program, const PassContext& context);

}  // namespace gravure
