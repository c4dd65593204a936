#pragma once
// accumulate-gradients: each gradient is added to a buffer of the caller's instead of being returned.
//
// Terms. Gradient buffer: an input `buffer "w.grad"`, w being the name of the tensor that the gradient
//   belongs to: the caller's `.grad` of it.
// Does nothing without PassOptions::accumulateGradients.
// Before:
//     graph step(%w : T {parameter "w"}, …):
//       %g : T = …
//       return (%loss {loss}, %g {gradient "w"})
// After:
//     graph step(%w : T {parameter "w"}, …, %w.grad : T {buffer "w.grad"}):
//       %g : T = …
//       %g.sum : T = aten::add_.Tensor(%w.grad, %g)
//       return (%loss {loss})
//   Buffers come behind the other inputs, in the order of the gradients. They are laid out as autograd
//   lays a gradient out: with the strides of the tensor it belongs to if that is dense, else row by row.
//   The addition is autograd's own, `grad += g`. It stands right behind the node that makes the gradient,
//   whose memory is free from there on; at the end of the entry if that memory is an input's or is
//   written to. One Passed remark ("gradients-accumulated") an entry.
// Complexity: linear in nodes plus edges.
// Refuses: a gradient of a tensor that is given anew each step, or of unknown shape, or of another shape,
//   dtype or device than its tensor: it stays a result (remark "gradient-returned").

#include "passes/pass.h"

namespace gravure {

void accumulateGradients(Program& program, PassContext& context);
/// With the option, each gradient buffer is added to once and not used otherwise, and the gradient that
/// is added is not returned.
void verifyAccumulateGradients(const Program& program, const PassContext& context);

}  // namespace gravure
