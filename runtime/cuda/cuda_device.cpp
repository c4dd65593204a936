#include "runtime/cuda/cuda_device.h"

#include "runtime/cuda/cuda_capture.h"
#include "runtime/cuda/cuda_libraries.h"
#include "runtime/cuda/cuda_pages.h"

#include <ATen/Context.h>
#include <ATen/core/CachingHostAllocator.h>
#include <ATen/core/Generator.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>

#include <map>
#include <mutex>
#include <utility>

namespace gravure {

namespace {

/// Streams to capture on, kept for the next device object. PyTorch's own pool of streams would hand
/// out one that other code may be using; and a stream that the allocator knows is never destroyed.
class CaptureStreams {
 public:
  static CaptureStreams& get() {
    static CaptureStreams* streams = new CaptureStreams;
    return *streams;
  }

  c10::cuda::CUDAStream take(c10::DeviceIndex device) {
    std::lock_guard lock(mutex_);
    auto& idle = idle_[device];
    cudaStream_t stream = nullptr;
    if (idle.empty()) {
      c10::cuda::CUDAGuard guard(device);
      C10_CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    } else {
      stream = idle.back();
      idle.pop_back();
    }
    return c10::cuda::getStreamFromExternal(stream, device);
  }

  void giveBack(c10::cuda::CUDAStream stream) {
    std::lock_guard lock(mutex_);
    idle_[stream.device_index()].push_back(stream.stream());
  }

 private:
  std::mutex mutex_;
  std::map<c10::DeviceIndex, std::vector<cudaStream_t>> idle_;
};

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
    : index_(checked(index)), allocator_(CudaAllocator::install()),
      captureStream_(CaptureStreams::get().take(index)), pool_(at::cuda::graph_pool_handle()) {
  holdPool();
}

CudaDevice::~CudaDevice() {
  try {
    dropWarmUp();
    dropPool();
  } catch (const std::exception& error) {
    TORCH_WARN("giving back the graph pool of ", name(), " failed: ", error.what());
  }
  CaptureStreams::get().giveBack(captureStream_);
}

// A pool whose last use has ended cannot be used again, and a failed capture may be the only one.
void CudaDevice::holdPool() {
  allocator_.createOrIncrefPool(index_, pool_, nullptr);
  at::HostAllocator* pinned = at::getHostAllocator(at::kCUDA);
  pinned->begin_allocate_to_pool(pool_, [](c10::Stream) { return false; });
  pinned->end_allocate_to_pool(pool_);
}

void CudaDevice::dropPool() {
  dropWorkspaces(captureStream_);
  allocator_.releasePool(index_, pool_);
  at::getHostAllocator(at::kCUDA)->release_pool(pool_);
  if (allocator_.getPoolUseCount(index_, pool_) == 0) allocator_.emptyCache(pool_);
}

std::string CudaDevice::name() const { return tensorDevice().str(); }

void CudaDevice::installAllocator() { CudaAllocator::install(); }

std::shared_ptr<Slab> CudaDevice::makeSlab(const ArenaShape& shape) {
  passFaultPoint(FaultPoint::Allocation);
  return cudaPages(index_).make(shape);
}

int64_t CudaDevice::releaseMemory() {
  ArenaPages* arenas = knownCudaPages(index_);
  return arenas == nullptr ? 0 : arenas->releaseAtRest();
}

std::unique_ptr<Capture> CudaDevice::beginCapture(const std::vector<at::Generator>& generators) {
  return std::make_unique<CudaCapture>(*this, generators);
}

namespace {
thread_local bool warmingUp = false;
}

void CudaDevice::beginWarmUp() {
  if (!warmUpHeld_) {
    warmUpPool_ = at::cuda::graph_pool_handle();
    allocator_.createOrIncrefPool(index_, *warmUpPool_, nullptr);
    warmUpHeld_ = true;
  }
  warmingUp = true;
  warmUpRouting_ = std::make_unique<PoolRouting>(allocator_, index_, *warmUpPool_,
                                                 [](cudaStream_t) { return warmingUp; });
}

void CudaDevice::endWarmUp() {
  warmingUp = false;
  warmUpRouting_.reset();
}

void CudaDevice::dropWarmUp() {
  if (!warmUpPool_) return;
  if (warmUpHeld_) allocator_.releasePool(index_, *warmUpPool_);
  warmUpHeld_ = false;
  allocator_.emptyCache(*warmUpPool_);
}

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
  for (c10::DeviceIndex device = 0; device < c10::cuda::device_count(); ++device) {
    ArenaPages* arenas = knownCudaPages(device);
    if (arenas != nullptr) bytes += arenas->releaseAtRest();
  }
  return bytes;
}

std::unique_ptr<Device> makeCudaDevice(c10::DeviceIndex index) {
  return std::make_unique<CudaDevice>(index);
}

}  // namespace gravure
