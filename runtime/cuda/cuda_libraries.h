#pragma once
// What CUDA's libraries make once a thread and stream: handles, workspaces.

#include <c10/cuda/CUDAStream.h>

#include <array>

namespace gravure {

/// Makes the handles of this thread and, where PyTorch keeps them, their workspaces for the current
/// stream: a capture must find them there. Cheap when they are.
void readyLibraries();

/// The libraries' workspaces for this thread and the current stream, for as long as it lives: those
/// that were there before stay. Made and ended on one thread, whose handles nobody else uses.
class PassingWorkspaces {
 public:
  PassingWorkspaces();
  ~PassingWorkspaces();
  PassingWorkspaces(const PassingWorkspaces&) = delete;
  PassingWorkspaces& operator=(const PassingWorkspaces&) = delete;

 private:
  void* const stream_;
  void* handle_ = nullptr;
  std::array<bool, 2> stays_{};  // by table: cuBLAS's, cuBLASLt's
};

/// Frees the workspaces for `stream`. No graph that was captured on it may be launched again.
void dropWorkspaces(c10::cuda::CUDAStream stream);

}  // namespace gravure
