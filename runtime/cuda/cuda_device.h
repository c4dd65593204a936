#pragma once
// One GPU as the runtime sees it.

#include "runtime/cuda/cuda_allocator.h"
#include "runtime/cuda/cuda_capture_pool.h"
#include "runtime/cuda/cuda_libraries.h"
#include "runtime/cuda/cuda_warm_up_memory.h"
#include "runtime/device.h"

#include <c10/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAStream.h>

#include <functional>
#include <memory>
#include <optional>
#include <vector>

namespace gravure {

/// While one lives, what `routed` says yes to is allocated from `pool`. It is asked on the thread that
/// allocates, for the stream that it allocates for.
class PoolRouting {
 public:
  PoolRouting(CudaAllocator& allocator, c10::DeviceIndex device, c10::MempoolId_t pool,
              std::function<bool(cudaStream_t)> routed);
  ~PoolRouting();
  PoolRouting(const PoolRouting&) = delete;
  PoolRouting& operator=(const PoolRouting&) = delete;

 private:
  CudaAllocator& allocator_;
  const c10::DeviceIndex device_;
  const c10::MempoolId_t pool_;
};

/// One program's steps run on the caller's current stream; captures are made on another one. Not thread-safe, like the Runtime that owns it.
class CudaDevice final : public Device {
 public:
  /// TORCH_CHECK if there is no such GPU.
  explicit CudaDevice(c10::DeviceIndex index);
  ~CudaDevice() override;

  std::string name() const override;
  c10::Device tensorDevice() const override { return {c10::kCUDA, index_}; }
  int64_t alignment() const override { return 512; }  // as the caching allocator's blocks

  void installAllocator() override;
  std::shared_ptr<Slab> makeSlab(const ArenaShape& shape) override;
  int64_t releaseMemory() override;
  std::unique_ptr<Capture> beginCapture(const std::vector<at::Generator>& generators) override;

  void beginWarmUp() override;
  void endWarmUp() override;
  void dropWarmUp() override;

  std::unique_ptr<Marker> makeMarker() override;
  void synchronize() override;

  CudaAllocator& allocator() { return allocator_; }
  c10::cuda::CUDAStream currentStream() const { return c10::cuda::getCurrentCUDAStream(index_); }
  /// Where this program is captured: that of the stream which is current at the first call.
  CapturePool& captures();
  /// Gives back what is left of this program's warm-up once no work is left on it. Never waits.
  void tidyWarmUp() {
    if (warmUps_ != nullptr && warmUps_->hasEnded()) warmUps_->giveBack();
  }

 private:
  const c10::DeviceIndex index_;
  CudaAllocator& allocator_;
  std::shared_ptr<CapturePool> captures_;
  WarmUpMemory* warmUps_ = nullptr;  // where the GPU can map pages
  std::optional<c10::MempoolId_t> warmUpPool_;
  bool warmUpHeld_ = false;  // we hold a use of it
  std::unique_ptr<PoolRouting> warmUpRouting_;
  std::unique_ptr<PassingWorkspaces> warmUpWorkspaces_;
};

}  // namespace gravure
