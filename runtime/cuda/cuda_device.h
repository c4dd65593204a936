#pragma once
// One GPU as the runtime sees it.

#include "runtime/cuda/cuda_allocator.h"
#include "runtime/cuda/cuda_capture_pool.h"
#include "runtime/cuda/cuda_spare_pools.h"
#include "runtime/cuda/cuda_warm_up_pool.h"
#include "runtime/device/device.h"

#include <c10/cuda/CUDAStream.h>

#include <memory>
#include <vector>

namespace gravure {

/// One program's steps run on the caller's current stream; captures are made on another one. Not thread-safe,
/// like the Runtime that owns it.
class CudaDevice final : public Device {
 public:
  /// TORCH_CHECK if there is no such GPU.
  explicit CudaDevice(c10::DeviceIndex index);

  std::string name() const override;
  c10::Device tensorDevice() const override { return {c10::kCUDA, index_}; }
  int64_t alignment() const override { return 512; }  // as the caching allocator's blocks

  void installAllocator() override;
  std::shared_ptr<Slab> makeSlab(const ArenaShape& shape) override;
  int64_t releaseMemory() override;
  std::unique_ptr<Capture> beginCapture(const std::vector<at::Generator>& generators) override;

  void beginWarmUp(int64_t expected) override { warmUp_.begin(expected); }
  void endWarmUp() override { warmUp_.end(); }
  void dropWarmUp() override { spare_.giveBack(allocator_); }

  bool callerCaptures() const override;
  bool seedsDropoutNext() const override;  // cuda_recurrent_dropout.cpp
  std::unique_ptr<Marker> makeMarker() override;
  void synchronize() override;
  void finishReplays() noexcept override {
    if (captures_) captures_->finish();
  }

  CudaAllocator& allocator() { return allocator_; }
  c10::cuda::CUDAStream currentStream() const { return c10::cuda::getCurrentCUDAStream(index_); }
  /// Where this program is captured: that of the stream which is current at the first call.
  CapturePool& captures();
  void tidyWarmUp() { spare_.tidy(allocator_); }

 private:
  const c10::DeviceIndex index_;
  CudaAllocator& allocator_;
  std::shared_ptr<CapturePool> captures_;
  SparePools& spare_;  // of all programs
  WarmUpPool warmUp_;
};

}  // namespace gravure
