#include "runtime/cuda/cuda_warm_up_pool.h"

#include "runtime/cuda/cuda_end_of_life.h"
#include "runtime/cuda/cuda_pages.h"

#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAGuard.h>

#include <algorithm>
#include <utility>

namespace gravure {

namespace {

thread_local int warmingUp = 0;

/// All that there are. Never destroyed.
struct Routings {
  std::mutex mutex;
  std::vector<PoolRouting*> all;

  static Routings& get() {
    static auto* routings = new Routings;
    return *routings;
  }
};

}  // namespace

bool isWarmingUp() { return warmingUp > 0; }

PoolRouting::PoolRouting(CudaAllocator& allocator, c10::DeviceIndex device, c10::MempoolId_t pool,
                         std::function<bool(cudaStream_t)> routed)
    : allocator_(allocator), device_(device), pool_(pool), routed_(std::move(routed)) {
  Routings& routings = Routings::get();
  const std::lock_guard lock(routings.mutex);
  begin();
  routings.all.push_back(this);
}

PoolRouting::~PoolRouting() {
  atEnd("ending the routing of allocations", [this] {
    Routings& routings = Routings::get();
    const std::lock_guard lock(routings.mutex);
    std::erase(routings.all, this);
    end();
  });
}

void PoolRouting::begin() {
  allocator_.beginAllocateToPool(device_, pool_, routed_);  // takes a use of it
  begun_ = true;
}

void PoolRouting::end() {
  if (!std::exchange(begun_, false)) return;
  allocator_.endAllocateToPool(device_, pool_);
  allocator_.releasePool(device_, pool_);
}

RoutingsPaused::RoutingsPaused() : still_(Routings::get().mutex) {
  for (PoolRouting* each : Routings::get().all) {
    atEnd("pausing the routing of allocations", [&] { each->end(); });
    paused_.push_back(each);
  }
}

RoutingsPaused::~RoutingsPaused() {
  for (PoolRouting* each : paused_)
    atEnd("resuming the routing of allocations", [&] { each->begin(); });
}

WarmUpPool::~WarmUpPool() {
  end();
  atEnd("giving back the memory of a warm-up", [this] { leave(); });
}

void WarmUpPool::leave() {
  letGo();
  for (MemoryPool& each : dropped_) EndedPools::of(device_).add(std::move(each));
  dropped_.clear();
}

void WarmUpPool::begin() {
  if (!pool_) {
    EndedPools::of(device_).giveBack();
    memory_ = WarmUpMemory::tryOf(device_);
    // An owner a pool, so that it is seen when PyTorch's pool ends.
    using Segments = c10::cuda::CUDACachingAllocator::CUDAAllocator;
    std::shared_ptr<Segments> segments;
    if (memory_ != nullptr) segments.reset(&memory_->segments(), [](Segments*) {});
    const auto id = at::cuda::graph_pool_handle();
    allocator_.createOrIncrefPool(device_, id, segments);
    pool_ = MemoryPool{id, segments};
  }
  try {
    routing_ = std::make_unique<PoolRouting>(allocator_, device_, pool_->id,
                                             [](cudaStream_t) { return warmingUp > 0; });
    ++warmingUp;
    // A capture has others, for its own stream: those of a model that is captured whole would lie idle.
    c10::cuda::CUDAGuard guard(device_);
    workspaces_ = std::make_unique<PassingWorkspaces>();
  } catch (...) {
    end();
    throw;
  }
}

void WarmUpPool::end() {
  if (!routing_) return;
  workspaces_.reset();
  --warmingUp;
  routing_.reset();
}

void WarmUpPool::drop() {
  if (letGo()) tidyDropped();
}

/// Ends the use of the pool. False if there is none.
bool WarmUpPool::letGo() {
  if (!pool_) return false;
  dropped_.push_back(*std::exchange(pool_, std::nullopt));
  allocator_.releasePool(device_, dropped_.back().id);
  tidied_ = 0;
  return true;
}

void WarmUpPool::tidyDropped() {
  const auto isGone = [&](const MemoryPool& each) {
    return allocator_.tryEmptyCache(each.id) && each.segments.expired();
  };
  dropped_.erase(std::remove_if(dropped_.begin(), dropped_.end(), isGone), dropped_.end());
}

}  // namespace gravure
