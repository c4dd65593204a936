#include "runtime/cuda/cuda_device.h"

#include "runtime/cuda/cuda_arena_stats.h"
#include "runtime/cuda/cuda_blocks.h"
#include "runtime/cuda/cuda_capture.h"
#include "runtime/cuda/cuda_marker.h"
#include "runtime/cuda/cuda_pages.h"

#include <ATen/Context.h>
#include <ATen/cuda/CUDAGraph.h>
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
    : index_(checked(index)), allocator_(CudaAllocator::install()) {}

CudaDevice::~CudaDevice() {
  try {
    dropWarmUp();
    if (captures_) captures_->trim();
  } catch (const std::exception& error) {
    TORCH_WARN("giving back memory of ", name(), " failed: ", error.what());
  }
}

CapturePool& CudaDevice::captures() {
  if (!captures_) captures_ = CapturePool::of(allocator_, currentStream());
  return *captures_;
}

std::string CudaDevice::name() const { return tensorDevice().str(); }

void CudaDevice::installAllocator() { CudaAllocator::install(); }

std::shared_ptr<Slab> CudaDevice::makeSlab(const ArenaShape& shape) {
  passFaultPoint(FaultPoint::Allocation);
  std::string why = whyNoPages(index_);
  if (!why.empty()) return cudaBlocks(index_).make(shape, std::move(why));
  if (warmUps_ == nullptr) return cudaPages(index_).make(shape);
  const int64_t page = warmUps_->largePage();
  const auto pages = warmUps_->takeEnded(shape.bytes / page, currentStream());
  allocator_.stats(index_).add(static_cast<int64_t>(pages.size()) * page);
  return cudaPages(index_).make(shape, pages);
}

int64_t CudaDevice::releaseMemory() { return releaseAtRest(index_); }

std::unique_ptr<Capture> CudaDevice::beginCapture(const std::vector<at::Generator>& generators) {
  return std::make_unique<CudaCapture>(*this, generators);
}

namespace {
thread_local bool warmingUp = false;
}

void CudaDevice::beginWarmUp() {
  if (!warmUpHeld_) {
    std::shared_ptr<CudaAllocator> segments;
    if (whyNoPages(index_).empty()) {
      warmUps_ = &WarmUpMemory::of(index_);
      segments = std::shared_ptr<CudaAllocator>(warmUps_, [](CudaAllocator*) {});
    }
    warmUpPool_ = at::cuda::graph_pool_handle();
    allocator_.createOrIncrefPool(index_, *warmUpPool_, segments);
    warmUpHeld_ = true;
  }
  warmingUp = true;
  warmUpRouting_ = std::make_unique<PoolRouting>(allocator_, index_, *warmUpPool_,
                                                 [](cudaStream_t) { return warmingUp; });
  // A capture has others, for its own stream: those of a model that is captured whole would lie idle.
  c10::cuda::CUDAGuard guard(index_);
  warmUpWorkspaces_ = std::make_unique<PassingWorkspaces>();
}

void CudaDevice::endWarmUp() {
  warmUpWorkspaces_.reset();
  warmingUp = false;
  warmUpRouting_.reset();
}

void CudaDevice::dropWarmUp() {
  if (!warmUpPool_) return;
  if (warmUpHeld_) allocator_.releasePool(index_, *warmUpPool_);
  warmUpHeld_ = false;
  allocator_.emptyCache(*warmUpPool_);
}

std::unique_ptr<Marker> CudaDevice::makeMarker() { return std::make_unique<CudaMarker>(index_); }

void CudaDevice::synchronize() {
  c10::cuda::CUDAGuard guard(index_);
  c10::cuda::device_synchronize();
}

PoolRouting::PoolRouting(CudaAllocator& allocator, c10::DeviceIndex device, c10::MempoolId_t pool,
                         std::function<bool(cudaStream_t)> routed)
    : allocator_(allocator), device_(device), pool_(pool) {
  allocator_.beginAllocateToPool(device_, pool_, std::move(routed));
}

PoolRouting::~PoolRouting() {
  try {
    allocator_.endAllocateToPool(device_, pool_);
    allocator_.releasePool(device_, pool_);  // beginAllocateToPool took a use of it
  } catch (const std::exception& error) {
    TORCH_WARN("ending the routing of allocations failed: ", error.what());
  }
}

int64_t releaseCudaMemory() {
  int64_t bytes = 0;
  for (c10::DeviceIndex device = 0; device < c10::cuda::device_count(); ++device)
    bytes += releaseAtRest(device);
  return bytes;
}

std::unique_ptr<Device> makeCudaDevice(c10::DeviceIndex index) {
  return std::make_unique<CudaDevice>(index);
}

}  // namespace gravure
