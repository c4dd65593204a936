#pragma once
// tag-static-inputs: every operand of a partition gets a tag that says how its address is kept, and why.
//
// Terms. Static: the same address each step. Staged: copied before the replay into a buffer that the
//   runtime owns. Guarded: a number that is part of what was captured; another value takes another path.
//   In place: an input that the program writes to, or hands back a view of; a staged copy would keep the
//   write, or the view, from the caller.
// Before: cudagraph::partition nodes as partition-graph leaves them.
//     %y.out : T = cudagraph::partition[index=1](%w, %x, %h, %n, %g)
// After: one tag an operand; nothing else changes.
//     %y.out : T = cudagraph::partition[index=1, tags=["static: parameter", "staged: user input",
//                                       "static: host node", "guarded: s0", "rng: cuda:0#1"]](…)
//   operand                                        tag
//   parameter, buffer, constant                    static: parameter | buffer | constant
//   user input, tangent                            staged: user input | tangent
//     one that is in place                         static: mutated user input | aliased user input
//   result of another partition                    static: partition N
//   result of a host node, fresh                   static: host node
//     that is a view of a staged kind of input     staged: view of user input
//     that control flow brought about              staged: control flow
//   CPU tensor in a program of another device      guarded: host constant
//   saved value that forward made                  static: saved value
//     that was forward's parameter, …              static: saved parameter
//     that was forward's user input                staged: saved user input
//     without a forward in the program             staged: saved value
//   int, float, bool                               guarded: its name
//   Generator                                      rng: its name
//   One Analysis remark ("input-in-place") an input that is in place: the partition is replayed only
//   while the caller passes the address it was captured with. One ("operand-staged") an operand that is
//   staged though it is no input of the entry.
// Complexity: linear in nodes plus edges.
// Refuses: a tensor operand whose shape is known only at run time, which classify-capturability never
//   lets into a partition.

#include "passes/pass.h"

namespace gravure {

void tagStaticInputs(Program& program, PassContext& context);
/// One tag an operand, of the kind that its type asks for; no kept input is staged, no written storage
/// is staged, and no input given anew each step is static unless it is in place.
void verifyTagStaticInputs(const Program& program, const PassContext& context);

}  // namespace gravure
