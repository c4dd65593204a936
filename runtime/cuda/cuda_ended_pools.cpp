#include "runtime/cuda/cuda_ended_pools.h"

#include "runtime/cuda/cuda_allocator.h"

#include <algorithm>
#include <array>

namespace gravure {

EndedPools& EndedPools::of(c10::DeviceIndex device) {
  static auto* all = new std::array<EndedPools, 64>;  // never destroyed, as what is dropped at exit
  return all->at(static_cast<size_t>(device));
}

void EndedPools::add(MemoryPool pool) noexcept {
  const std::lock_guard lock(mutex_);
  pools_.push_back(std::move(pool));
}

void EndedPools::giveBack() {
  std::vector<MemoryPool> ended;
  {
    const std::lock_guard lock(mutex_);
    ended.swap(pools_);
  }
  // PyTorch's lock is taken in there: nothing of ours is held meanwhile.
  const auto isGone = [](const MemoryPool& each) {
    return CudaAllocator::install().tryEmptyCache(each.id) && each.segments.expired();
  };
  ended.erase(std::remove_if(ended.begin(), ended.end(), isGone), ended.end());
  const std::lock_guard lock(mutex_);
  pools_.insert(pools_.end(), ended.begin(), ended.end());
}

}  // namespace gravure
