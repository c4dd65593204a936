#pragma once
// Private: at::CUDAGeneratorImpl::state_, the random state that a GPU's generator has now.
//
// PyTorch tells nobody which state a generator has, and two may share one; a capture binds the state,
// not the generator. Without it nothing that draws could be captured. For //runtime:cuda alone: it
// needs CUDA's headers.

#include <ATen/cuda/CUDAGeneratorImpl.h>

namespace gravure::torch_private {
namespace {

using CudaState = c10::intrusive_ptr<at::CUDAGeneratorState>;

CudaState at::CUDAGeneratorImpl::*stateMember();

/// The standard lets an explicit instantiation name a private member ([temp.spec.general]/6).
template <CudaState at::CUDAGeneratorImpl::*Member>
struct GeneratorState {
  friend CudaState at::CUDAGeneratorImpl::*stateMember() { return Member; }
};
template struct GeneratorState<&at::CUDAGeneratorImpl::state_>;

}  // namespace
}  // namespace gravure::torch_private
