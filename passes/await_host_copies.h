#pragma once
// await-host-copies: a copy to the CPU that the program itself uses is waited for where it is made.
//
// Terms. Host copy: _to_copy, to, copy_, copy, _foreach_copy_, device_put or their like from another
//   device to the CPU. With non_blocking=True it returns before the data is there.
// Before: the order in which it was traced has something behind it that waits for the device, before
//   anything reads the copy. No operand says so, and passes move nodes.
//     %a : Long(2, device=cpu) = aten::_to_copy(%x, device=device("cpu"), non_blocking=True)
//     %b : Long(2, device=cpu) = aten::_to_copy(%y, device=device("cpu"))
//     %s : Long(device=cpu) = aten::select.int(%a, 0, 0)
//     %n : int = aten::_local_scalar_dense(%s)
// After: non_blocking=False on %a, and one Passed remark ("copy-awaited").
// A copy that only the caller uses stays as it is: a step should not wait for it.
// It is the first pass: any that moves a node may move one that waits in front of such a copy.
// Complexity: linear in nodes plus edges.

#include "passes/pass.h"

namespace gravure {

void awaitHostCopies(Program& program, PassContext& context);
/// Throws c10::Error that names a host copy without a wait that the program uses.
void checkAwaitedCopies(const Program& program, const PassContext& context);

}  // namespace gravure
