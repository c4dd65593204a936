#include "runtime/cuda/cuda_warm_up_pool.h"

#include "runtime/cuda/cuda_end_of_life.h"
#include "runtime/cuda/cuda_spare_pools.h"

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
  atEnd("the end of a warm-up", [this] { end(); });
}

/// PyTorch's allocator keeps what it has no use for: a segment that all of the run comes to lie in.
void WarmUpPool::makeSegment(int64_t bytes) {
  const WarmUpMemory* memory = WarmUpMemory::known(device_);
  const int64_t room = static_cast<int64_t>(allocator_.getMemoryInfo(device_).first) +
                       (memory == nullptr ? 0 : memory->uncounted());
  if (room < bytes) return;
  try {
    allocator_.base().raw_delete(allocator_.base().raw_alloc(static_cast<size_t>(bytes)));
  } catch (const c10::OutOfMemoryError&) {
    // The run takes segments as it needs them.
  }
}

void WarmUpPool::begin(int64_t expected) {
  const auto stream = c10::cuda::getCurrentCUDAStream(device_);
  auto [pool, segment] = SparePools::of(device_).take(allocator_, stream, this, expected);
  taken_ = Taken{std::move(pool), stream};
  try {
    routing_ = std::make_unique<PoolRouting>(allocator_, device_, taken_->pool.id,
                                             [](cudaStream_t) { return warmingUp > 0; });
    ++warmingUp;
    // A capture has others, for its own stream: those of a model that is captured whole would lie idle.
    c10::cuda::CUDAGuard guard(device_);
    if (segment > 0) makeSegment(segment);
    workspaces_ = std::make_unique<PassingWorkspaces>();
  } catch (...) {
    end();
    throw;
  }
}

void WarmUpPool::end() {
  if (!taken_) return;
  if (routing_) {
    workspaces_.reset();
    --warmingUp;
    routing_.reset();
  }
  Taken taken = *std::exchange(taken_, std::nullopt);
  SparePools::of(device_).put(std::move(taken.pool), taken.stream);
}

}  // namespace gravure
