#pragma once
// join-gradients: gradients of the parts of one tensor are put together at once.
//
// Terms. Placed gradient: the result of aten::select_backward or aten::slice_backward, zeros but for one
//   part. Autograd adds the placed gradients of all parts that a loop used: of n parts, n times the
//   whole is filled, n - 1 times it is read twice and written.
// Before:
//     %p0 : Float(2, 64, …) = aten::select_backward(%g0, [2, 64], 0, 0)
//     %p1 : Float(2, 64, …) = aten::select_backward(%g1, [2, 64], 0, 1)
//     %s : Float(2, 64, …) = aten::add.Tensor(%p0, %p1)
// After:
//     %s.joined : Float(2, 64, …) = aten::stack([%g0, %g1], 0)
//     %s : Float(2, 64, …) = aten::add.Scalar(%s.joined, 0)
//   With slice_backward, aten::cat. One Passed remark ("gradients-joined") a sum.
// Bits: at each index one term of the sum is a gradient's element and all others are 0, so the sum is
//   that element whatever the order; but -0 becomes 0, and a NaN the one that additions make: hence
//   the addition of 0.
// Refuses: sums that leave a part out or have one twice, placed gradients and sums within that something
//   else uses, alphas, gradients that are written to, results that are not contiguous.
// Complexity: linear in nodes plus edges.

#include "passes/pass.h"

namespace gravure {

void joinGradients(Program& program, PassContext& context);

}  // namespace gravure
