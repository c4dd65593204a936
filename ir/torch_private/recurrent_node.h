#pragma once
// Private: CudnnRnnBackward0, autograd's node behind a recurrent module that cuDNN ran, and what it saves.
//
// The backward needs two tensors that the operators `lstm`, `gru`, … do not return. One of them is the
// state that cuDNN's dropout draws from, which PyTorch keeps for each GPU and shows to nobody else. Without
// them graphs break at every recurrent module on a GPU.

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/generated/Functions.h>
#include <torch/csrc/autograd/variable.h>

namespace gravure::torch_private {

struct SavedByRecurrent {
  at::Tensor reserve;       // uint8; what the forward leaves for its backward
  at::Tensor dropoutState;  // uint8; undefined where no module on the GPU has had dropout yet
};

/// Of the first result of a recurrent operator, computed in grad mode; nothing is defined where cuDNN did
/// not compute it.
inline SavedByRecurrent savedByRecurrent(const at::Tensor& output) {
  const auto& node = output.grad_fn();
  auto* recurrent =
      dynamic_cast<torch::autograd::generated::CudnnRnnBackward0*>(node ? &*node : nullptr);
  if (!recurrent) return {};
  return {recurrent->result3_.unpack(node), recurrent->dropout_state_.unpack(node)};
}

}  // namespace gravure::torch_private
