#pragma once
// How what lives on a GPU ends: without a throw and without a wait, on any thread, whatever captures are
// going on, and also where the GPU is lost.
//
// A destructor of this folder that calls CUDA or PyTorch's allocator does so in atEnd().

#include <cuda_runtime_api.h>

#include <exception>

namespace gravure {

/// True for errors after which a process can do nothing more on its GPU, as after a device-side assert
/// (CUDA runtime API, "cudaError": "the process must be terminated and relaunched").
bool isLost(cudaError_t error);

/// While one lives, no call on this thread is refused, and none ends a capture of another stream. Unlike
/// PyTorch's guard it throws on no GPU that is lost.
class UnseenByCaptures {
 public:
  UnseenByCaptures() noexcept;
  ~UnseenByCaptures();
  UnseenByCaptures(const UnseenByCaptures&) = delete;
  UnseenByCaptures& operator=(const UnseenByCaptures&) = delete;

 private:
  cudaStreamCaptureMode before_ = cudaStreamCaptureModeRelaxed;
  bool exchanged_ = false;
};

/// A warning that `what` failed; silent where the GPU is lost, which the call that lost it has said.
void warnAtEnd(const char* what, cudaError_t error) noexcept;
void warnAtEnd(const char* what, const std::exception& error) noexcept;

/// Does what ends something. Neither throws nor leaves an error for the next check of CUDA's.
template <typename Action>
void atEnd(const char* what, Action&& action) noexcept {
  const UnseenByCaptures unseen;
  try {
    action();
  } catch (const std::exception& error) {
    warnAtEnd(what, error);
  } catch (...) {  // nobody is left to be told
  }
}

}  // namespace gravure
