#pragma once
// Operands of a call that lets go of them one after another, as compiled code does.

#include <ATen/core/Tensor.h>

#include <vector>

namespace gravure {

/// A tensor over the memory of `operand`, whose part in it goes over to who watches it: from then on it
/// keeps nothing alive, and is good for its sizes and its address alone.
at::Tensor handOver(const at::Tensor& operand);

/// Tensors over the memory of `operands`, in order. The session of this thread's step is told when nobody
/// holds one of these, or a view of it, any more, whoever holds the operand. Where no session asks, the
/// operands themselves, but for those that were handed over.
std::vector<at::Tensor> watchOperands(const std::vector<at::Tensor>& operands);

/// True if the tensor's memory is that of a watched operand.
bool isWatchedOperand(const at::Tensor& tensor);

}  // namespace gravure
