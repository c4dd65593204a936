#pragma once
// Operands of a call that lets go of them one after another, as compiled code does.

#include <ATen/core/Tensor.h>

#include <vector>

namespace gravure {

/// Tensors over the memory of `operands`, in order. The session of this thread's step is told when nobody
/// holds one of these, or a view of it, any more, whoever holds the operand. Where no session asks, the
/// operands themselves.
std::vector<at::Tensor> watchOperands(const std::vector<at::Tensor>& operands);

/// True if the tensor's memory is that of a watched operand.
bool isWatchedOperand(const at::Tensor& tensor);

}  // namespace gravure
