#include "runtime/cuda/cuda_warm_up_pool.h"

#include "runtime/cuda/cuda_pages.h"

#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAGuard.h>

#include <algorithm>
#include <utility>

namespace gravure {

namespace {
thread_local bool warmingUp = false;
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

WarmUpPool::~WarmUpPool() {
  try {
    drop();
  } catch (const std::exception& error) {
    TORCH_WARN("giving back the memory of a warm-up failed: ", error.what());
  }
}

void WarmUpPool::begin() {
  if (!pool_) {
    std::shared_ptr<CudaAllocator> segments;
    if (whyNoPages(device_).empty()) {
      memory_ = &WarmUpMemory::of(device_);
      segments = std::shared_ptr<CudaAllocator>(memory_, [](CudaAllocator*) {});
    }
    const auto id = at::cuda::graph_pool_handle();
    allocator_.createOrIncrefPool(device_, id, segments);
    pool_ = Pool{id, segments};
  }
  warmingUp = true;
  routing_ = std::make_unique<PoolRouting>(allocator_, device_, pool_->id,
                                           [](cudaStream_t) { return warmingUp; });
  // A capture has others, for its own stream: those of a model that is captured whole would lie idle.
  c10::cuda::CUDAGuard guard(device_);
  workspaces_ = std::make_unique<PassingWorkspaces>();
}

void WarmUpPool::end() {
  workspaces_.reset();
  warmingUp = false;
  routing_.reset();
}

void WarmUpPool::drop() {
  if (!pool_) return;
  dropped_.push_back(*std::exchange(pool_, std::nullopt));
  allocator_.releasePool(device_, dropped_.back().id);
  tidied_ = 0;
  tidyDropped();
}

void WarmUpPool::tidyDropped() {
  const auto isGone = [&](const Pool& each) {
    return allocator_.tryEmptyCache(each.id) && each.segments.expired();
  };
  dropped_.erase(std::remove_if(dropped_.begin(), dropped_.end(), isGone), dropped_.end());
}

}  // namespace gravure
