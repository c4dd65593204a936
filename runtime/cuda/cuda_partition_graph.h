#pragma once
// One CUDA graph, and the undoing of a capture that failed.

#include "runtime/cuda/cuda_allocator.h"

#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAStream.h>

#include <vector>

namespace at {
class Generator;
}

namespace gravure {

/// PyTorch's CUDAGraph with what it lacks in 2.11: capture_end() throws on a failed capture before
/// it ends the routing of allocations and before the generators leave their capturing state, and
/// reset() gives the pool back only after a capture that ended. Everything here runs on one thread,
/// with the capture's stream current.
class PartitionGraph final : public at::cuda::CUDAGraph {
 public:
  /// `pool`: where allocations outside the plan go; the caller holds a use of it.
  PartitionGraph(CudaAllocator& allocator, c10::cuda::CUDAStream stream, c10::MempoolId_t pool);
  /// Undoes a capture that is still going on.
  ~PartitionGraph();

  /// Begins to capture, in thread-local mode. `generators`: what the calls draw from. Other threads
  /// may draw from the default generator meanwhile, unless a call here does.
  void begin(const std::vector<at::Generator>& generators);
  /// A call that comes next draws from the default generator.
  void drawFromDefault();
  /// Ends the capture and instantiates. If that throws, the capture was undone.
  void end();

  /// Enqueues the graph on `stream`, which must be the current one if it draws random numbers. If
  /// that throws, no generator has moved.
  void launch(cudaStream_t stream);

 private:
  void undo() noexcept;
  void endStreamCapture();
  void endRouting();
  void leaveCapturing();
  void givePoolBack();
  void launchDrawing();

  CudaAllocator& allocator_;
  const c10::cuda::CUDAStream stream_;
  const c10::MempoolId_t pool_;
  std::vector<c10::intrusive_ptr<at::CUDAGeneratorState>> idle_;  // registered, not drawn from
  int usesBefore_ = 0;
  bool capturing_ = false;
  bool draws_ = false;
};

}  // namespace gravure
