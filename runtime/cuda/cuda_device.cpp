#include "runtime/cuda/cuda_device.h"

#include "runtime/cuda/cuda_arena_stats.h"
#include "runtime/cuda/cuda_blocks.h"
#include "runtime/cuda/cuda_capture.h"
#include "runtime/cuda/cuda_end_of_life.h"
#include "runtime/cuda/cuda_event.h"
#include "runtime/cuda/cuda_marker.h"
#include "runtime/cuda/cuda_pages.h"

#include <ATen/Context.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>

#include <utility>

namespace gravure {

namespace {

c10::DeviceIndex checked(c10::DeviceIndex index) {
  const c10::DeviceIndex count = c10::cuda::device_count();
  TORCH_CHECK(count > 0, "there is no CUDA device: no driver, or no GPU that this process sees");
  TORCH_CHECK(index >= 0 && index < count, "there is no cuda:", static_cast<int>(index),
              "; this process sees ", static_cast<int>(count), " of them");
  at::globalContext().lazyInitDevice(c10::kCUDA);
  return index;
}

}  // namespace

CudaDevice::CudaDevice(c10::DeviceIndex index)
    : index_(checked(index)), allocator_(CudaAllocator::install()), spare_(SparePools::of(index_)),
      warmUp_(allocator_, index_) {}

CapturePool& CudaDevice::captures() {
  if (!captures_) captures_ = CapturePool::of(allocator_, currentStream());
  return *captures_;
}

std::string CudaDevice::name() const { return tensorDevice().str(); }

void CudaDevice::installAllocator() { CudaAllocator::install(); }

std::shared_ptr<Slab> CudaDevice::makeSlab(const ArenaShape& shape) {
  passFaultPoint(FaultPoint::Allocation);
  std::string why = whyNoArenaPages(index_);
  if (!why.empty()) return cudaBlocks(index_).make(shape, std::move(why));
  WarmUpMemory* warmUps = WarmUpMemory::known(index_);
  if (warmUps == nullptr) return cudaPages(index_).make(shape);
  const int64_t page = warmUps->largePage();
  const auto pages = warmUps->takeEnded(shape.bytes / page, currentStream());
  allocator_.stats(index_).add(static_cast<int64_t>(pages.size()) * page);
  return cudaPages(index_).make(shape, pages);
}

int64_t CudaDevice::releaseMemory() { return releaseAtRest(index_); }

std::unique_ptr<Capture> CudaDevice::beginCapture(const std::vector<at::Generator>& generators) {
  return std::make_unique<CudaCapture>(*this, generators);
}

bool CudaDevice::callerCaptures() const { return isCapturing(currentStream()); }

std::unique_ptr<Marker> CudaDevice::makeMarker() { return std::make_unique<CudaMarker>(index_); }

void CudaDevice::synchronize() {
  c10::cuda::CUDAGuard guard(index_);
  c10::cuda::device_synchronize();
}

int64_t releaseCudaMemory() {
  int64_t bytes = 0;
  for (c10::DeviceIndex device = 0; device < c10::cuda::device_count(); ++device)
    bytes += releaseAtRest(device);
  return bytes;
}

void giveBackIdleCudaCache() noexcept {
  atEnd("giving back PyTorch's cache", [] {
    for (c10::DeviceIndex device = 0; device < c10::cuda::device_count(); ++device)
      SparePools::of(device).emptyIdleCache(CudaAllocator::install());
  });
}

std::unique_ptr<Device> makeCudaDevice(c10::DeviceIndex index) {
  return std::make_unique<CudaDevice>(index);
}

}  // namespace gravure
