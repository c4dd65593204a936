#pragma once
// Differs: what an allocator of CUDA memory may be asked, beyond what torch 2.11 asks.
//
// Most of it has a default, which does nothing: an allocator that stands before PyTorch's own and does
// not pass it on hides it, without a word. Of these the captures (2.13) matter most: PyTorch's allocator
// that is not told of one marks and frees memory of other streams while it goes on. tests/python/
// test_allocator_calls.py holds the names against the installed torch's header. For //runtime:cuda alone:
// it needs CUDA's headers.

#include <c10/cuda/CUDACachingAllocator.h>
#include <torch/headeronly/version.h>

#include <string>
#include <utility>

namespace gravure::torch_private {

using c10::cuda::CUDACachingAllocator::CUDAAllocator;

/// Passes on to `base_` what an allocator of ours has no other answer to.
class NewerAllocator : public CUDAAllocator {
 public:
#if TORCH_VERSION_MINOR >= 12
  std::shared_ptr<c10::GatheredContext> getContextForPointer(const void* address) override {
    return base_->getContextForPointer(address);
  }
  void attachOomRejectionObserver(
      c10::cuda::CUDACachingAllocator::OomRejectionObserver observer) override {
    base_->attachOomRejectionObserver(std::move(observer));
  }
#endif
#if TORCH_VERSION_MINOR >= 13
  void markCaptureBegin(c10::DeviceIndex device) override { base_->markCaptureBegin(device); }
  void markCaptureEnd(c10::DeviceIndex device) override { base_->markCaptureEnd(device); }
  c10::DataPtr allocateWithAddress(size_t bytes, void* address) override {
    return base_->allocateWithAddress(bytes, address);
  }
#endif
#if TORCH_VERSION_MINOR >= 14
  bool supportsUserMetadata() override { return base_->supportsUserMetadata(); }
  void annotateMemory(const void* address, const std::string& metadata) override {
    base_->annotateMemory(address, metadata);
  }
#endif

 protected:
  explicit NewerAllocator(CUDAAllocator* base) : base_(base) {}

  CUDAAllocator* const base_;
};

/// A capture by the driver has begun on `device`, or has ended, however: once each. Before 2.13 the
/// allocator takes routing to a pool for a capture.
inline void tellCaptureBegan(CUDAAllocator& allocator, c10::DeviceIndex device) {
#if TORCH_VERSION_MINOR >= 13
  allocator.markCaptureBegin(device);
#else
  (void)allocator, (void)device;
#endif
}
inline void tellCaptureEnded(CUDAAllocator& allocator, c10::DeviceIndex device) {
#if TORCH_VERSION_MINOR >= 13
  allocator.markCaptureEnd(device);
#else
  (void)allocator, (void)device;
#endif
}

/// Whether NCCL registers, for good, whatever a snapshot of the allocator shows: 2.15's "nccl" does, once
/// a process, when its first communicator is made. Pages of an arena change behind their addresses.
constexpr bool kNcclRegistersSnapshots = TORCH_VERSION_MINOR >= 15;

}  // namespace gravure::torch_private
