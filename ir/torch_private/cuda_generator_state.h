#pragma once
// Private: at::CUDAGeneratorImpl::state_, the random state that a GPU's generator has now, and what that
// holds of captures.
//
// PyTorch tells nobody which state a generator has, and two may share one; a capture binds the state,
// not the generator. Without it nothing that draws could be captured. Since 2.12 a state has a part of
// its own for each capture, by the capture's number; before, it is in one capture at a time as a whole.
// Where the part is missing, PyTorch makes it in the middle of the capture (2.14), for a graph of its
// own only, or throws. For //runtime:cuda alone: it needs CUDA's headers.

#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <torch/headeronly/version.h>

#include <mutex>
#include <utility>

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

inline CudaState stateOfCuda(const at::Generator& generator) {
  auto& impl = *at::check_generator<at::CUDAGeneratorImpl>(generator);
  const std::lock_guard lock(impl.mutex_);
  return impl.*stateMember();
}

/// Whether a graph that is being captured elsewhere keeps `state` from other captures: before 2.12.
inline bool isTakenByCapture(const at::CUDAGeneratorState& state) {
#if TORCH_VERSION_MINOR >= 12
  (void)state;
  return false;
#else
  return state.capturing_;
#endif
}

/// What one capture draws from the state that `generator` has: kernels read `seed` and `offset`, an int64
/// each on the device, and add what the capture has drawn before them.
class CaptureDraws {
 public:
  /// `capture`: CUDA's number for it.
  CaptureDraws(const at::Generator& generator, unsigned long long capture, at::TensorBase seed,
               at::TensorBase offset) {
#if TORCH_VERSION_MINOR >= 12
    standIn_ = generator;
    capture_ = capture;
    state_ = stateOfCuda(generator);
    part_ = c10::make_intrusive<at::CUDAGeneratorCaptureState>();
    part_->rng_state_seed_extragraph_ = std::move(seed);
    part_->rng_state_offset_extragraph_ = std::move(offset);
    const std::lock_guard lock(state_->capture_states_mutex_);
    state_->capture_states_[capture_] = part_;
#else
    (void)capture;
    state_ = c10::make_intrusive<at::CUDAGeneratorState>();
    state_->seed_extragraph_ = std::move(seed);
    state_->offset_extragraph_ = std::move(offset);
    state_->capturing_ = true;
    standIn_ = at::make_generator<at::CUDAGeneratorImpl>(generator.device().index(), state_);
#endif
  }
  ~CaptureDraws() { leave(); }
  CaptureDraws(const CaptureDraws&) = delete;
  CaptureDraws& operator=(const CaptureDraws&) = delete;

  /// What calls of the capture draw from: since 2.12 the generator itself, and other threads draw from
  /// it undisturbed.
  const at::Generator& standIn() const { return standIn_; }

  /// The capture draws no more. Returns how far a launch moves the generator. Throws c10::Error if
  /// somebody else's capture has taken the stand-in for the generator.
  uint64_t end() {
#if TORCH_VERSION_MINOR >= 12
    leave();
    return part_->offset_intragraph_;
#else
    TORCH_CHECK(state_->registered_graphs_.empty(),
                "a capture elsewhere began while a call that draws was being captured");
    leave();
    return state_->offset_intragraph_;
#endif
  }

 private:
  void leave() {
#if TORCH_VERSION_MINOR >= 12
    const std::lock_guard lock(state_->capture_states_mutex_);
    const auto found = state_->capture_states_.find(capture_);
    if (found != state_->capture_states_.end() && found->second == part_)
      state_->capture_states_.erase(found);
#else
    state_->capturing_ = false;
#endif
  }

  at::Generator standIn_;
  CudaState state_;
#if TORCH_VERSION_MINOR >= 12
  unsigned long long capture_ = 0;
  c10::intrusive_ptr<at::CUDAGeneratorCaptureState> part_;
#endif
};

}  // namespace gravure::torch_private
