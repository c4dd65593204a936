#pragma once
// Private: at::CUDAGeneratorImpl::no_reset_rnn_state_, clear where the next recurrent module seeds cuDNN's
// dropout anew.
//
// PyTorch's own reset_rnn_state() sets it, so to ask would be to change what is asked for. Without it a
// replay would draw by a seed that manual_seed() has replaced. For //runtime:cuda alone: it needs CUDA's
// headers.

#include <ATen/cuda/CUDAGeneratorImpl.h>

#include <atomic>

namespace gravure::torch_private {
namespace {

std::atomic_flag at::CUDAGeneratorImpl::*restartMember();

/// As in cuda_generator_state.h.
template <std::atomic_flag at::CUDAGeneratorImpl::*Member>
struct DropoutRestart {
  friend std::atomic_flag at::CUDAGeneratorImpl::*restartMember() { return Member; }
};
template struct DropoutRestart<&at::CUDAGeneratorImpl::no_reset_rnn_state_>;

}  // namespace

inline bool seedsDropoutNext(const at::Generator& generator) {
  auto& impl = *at::check_generator<at::CUDAGeneratorImpl>(generator);
  return !(impl.*restartMember()).test();
}

}  // namespace gravure::torch_private
