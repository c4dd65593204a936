#include "runtime/cuda/cuda_spare_pools.h"

#include "runtime/cuda/cuda_allocator.h"
#include "runtime/cuda/cuda_partition_graph.h"

#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAFunctions.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

namespace gravure {
namespace {

/// Replays without a warm-up after which what is spare lies idle. A program of many partitions has eight in
/// one step; a model that is one graph has come so far in its tenth step. In a model of many graphs, some of
/// which replay while others warm up, memory is only made anew then.
constexpr int64_t kIdle = 12;

constexpr int64_t kLeastSegment = int64_t{64}
                                  << 20;  // smaller ones are not worth a call of the driver

/// Whether a step of `expected` bytes that had `had` left more than a few holes. One whose blocks fitted well
/// may fit worse in one segment.
bool leftHoles(int64_t had, int64_t expected) {
  constexpr int64_t kFew = 8;  // an eighth of what is expected
  return had > expected + expected / kFew;
}

struct PoolUse {
  int64_t total = 0, active = 0, largest = 0;  // bytes; of the largest segment
};

PoolUse useOf(CudaAllocator& allocator, const MemoryPool& pool) {
  PoolUse use;
  for (const auto& segment : allocator.base().snapshot(pool.id, false).segments) {
    use.active += static_cast<int64_t>(segment.active_size);
    use.total += static_cast<int64_t>(segment.total_size);
    use.largest = std::max(use.largest, static_cast<int64_t>(segment.total_size));
  }
  return use;
}

bool isTime(int64_t call) { return (call & (call - 1)) == 0 || call % 1024 == 0; }

/// True if a 16th of what PyTorch's allocator has, and 64 MiB at least, is in no use.
bool isWorthEmptying(const c10::CachingDeviceAllocator::DeviceStats& stats) {
  constexpr int64_t kLeast = int64_t{64} << 20;
  const int64_t has = stats.reserved_bytes[0].current;
  return has - stats.active_bytes[0].current >= std::max(kLeast, has / 16);
}

}  // namespace

SparePools& SparePools::of(c10::DeviceIndex device) {
  static auto* all = [] {  // never destroyed, as what programs leave at exit
    auto* made = new std::array<SparePools*, 64>;
    for (size_t i = 0; i < made->size(); ++i)
      (*made)[i] = new SparePools(static_cast<c10::DeviceIndex>(i));
    return made;
  }();
  return *all->at(static_cast<size_t>(device));
}

SparePools::Taken SparePools::take(CudaAllocator& allocator, c10::cuda::CUDAStream stream,
                                   const void* who, int64_t expected) {
  // Segments on pages alone: cudaFree would wait.
  const bool paged = memory_.load(std::memory_order_acquire) != nullptr;
  const bool isKnown = wasAlone(who, expected >= 0) && paged && expected >= kLeastSegment;
  if (auto known = takeKnown(stream)) {
    const PoolUse use = isKnown ? useOf(allocator, *known) : PoolUse{};
    const bool stays = use.active > 0 || use.largest >= expected;
    const bool isAnew = isKnown && !stays && leftHoles(use.total, expected);
    if (isAnew) hold(allocator, {*known});
    // What earlier programs' warm-ups have freed since serves this one.
    if (paged) tidyHeld(allocator);
    if (!isAnew) return {*known, 0};
    return {make(allocator), expected};
  }
  EndedPools::of(device_).giveBack();
  tidyHeld(allocator);
  if (isTimeToEmpty()) emptyIdleCache(allocator);
  const bool hadHoles = leftHoles(takeHad(), expected);
  return {make(allocator), isKnown && hadHoles ? expected : 0};
}

int64_t SparePools::takeHad() {
  const std::lock_guard lock(mutex_);
  return std::exchange(had_, 0);
}

/// Where a step begins: whether nobody but `who` has taken a pool in the last one.
bool SparePools::wasAlone(const void* who, bool begins) {
  const std::lock_guard lock(mutex_);
  othersTook_ |= lastTaker_ != nullptr && lastTaker_ != who;
  lastTaker_ = who;
  return begins && !std::exchange(othersTook_, false);
}

bool SparePools::isTimeToEmpty() {
  const std::lock_guard lock(mutex_);
  return isTime(++made_) && !PartitionGraph::oneIsCaptured();
}

std::optional<MemoryPool> SparePools::takeKnown(c10::cuda::CUDAStream stream) {
  const std::lock_guard lock(mutex_);
  unused_ = 0;
  warmedUp_ = true;
  // The last one: what a forward saved is freed in its backward.
  const auto found = std::find_if(spare_.rbegin(), spare_.rend(),
                                  [&](const Spare& each) { return each.stream == stream; });
  if (found == spare_.rend()) return std::nullopt;
  const MemoryPool pool = found->pool;
  spare_.erase(std::next(found).base());
  noteWhetherToTidy();
  return pool;
}

MemoryPool SparePools::make(CudaAllocator& allocator) {
  WarmUpMemory* memory = WarmUpMemory::tryOf(device_);
  memory_.store(memory, std::memory_order_release);
  // An owner a pool, so that it is seen when PyTorch's pool ends.
  using Segments = c10::cuda::CUDACachingAllocator::CUDAAllocator;
  std::shared_ptr<Segments> segments;
  if (memory != nullptr) segments.reset(&memory->segments(), [](Segments*) {});
  const auto id = at::cuda::graph_pool_handle();
  allocator.createOrIncrefPool(device_, id, segments);
  return {id, segments};
}

void SparePools::put(MemoryPool pool, c10::cuda::CUDAStream stream) {
  const std::lock_guard lock(mutex_);
  unused_ = 0;
  spare_.push_back({std::move(pool), stream});
  noteWhetherToTidy();
}

bool SparePools::letGo(CudaAllocator& allocator) {
  return letGoOf(allocator, [](const Spare&) { return true; });
}

bool SparePools::letGoOf(CudaAllocator& allocator,
                         const std::function<bool(const Spare&)>& isWanted) {
  std::vector<Spare> spare;
  {
    const std::lock_guard lock(mutex_);
    spare.swap(spare_);
  }
  const auto kept = std::stable_partition(spare.begin(), spare.end(), isWanted);
  std::vector<MemoryPool> pools;
  for (auto it = spare.begin(); it != kept; ++it) pools.push_back(std::move(it->pool));
  {
    const std::lock_guard lock(mutex_);
    spare_.insert(spare_.begin(), std::make_move_iterator(kept),
                  std::make_move_iterator(spare.end()));
  }
  if (pools.empty()) return false;
  hold(allocator, std::move(pools));
  return true;
}

/// Nobody allocates in them any more.
void SparePools::hold(CudaAllocator& allocator, std::vector<MemoryPool> pools) {
  for (const MemoryPool& each : pools) allocator.releasePool(device_, each.id);
  const std::lock_guard lock(mutex_);
  held_.insert(held_.end(), std::make_move_iterator(pools.begin()),
               std::make_move_iterator(pools.end()));
  tidied_ = 0;
  noteWhetherToTidy();
}

void SparePools::giveBack(CudaAllocator& allocator) {
  letGo(allocator);
  tidyHeld(allocator);
}

void SparePools::makeRoom(CudaAllocator& allocator, int64_t bytes) {
  WarmUpMemory* memory = memory_.load(std::memory_order_acquire);
  if (memory == nullptr) return;
  if (!mayTidy_.load(std::memory_order_relaxed) && !memory->hasEnded()) return;
  if (PartitionGraph::oneIsCaptured() || usesOtherGpus(allocator)) return;
  // In the midst of a step most of a pool is in use: the rest is for what comes.
  int64_t had = 0;
  const auto isIdle = [&](const Spare& each) {
    const PoolUse use = useOf(allocator, each.pool);
    const bool idle = use.active <= use.total / 2;
    if (idle) had = std::max(had, use.total);
    return idle;
  };
  if (letGoOf(allocator, isIdle)) {
    const std::lock_guard lock(mutex_);
    had_ = had;
  }
  tidyHeld(allocator);
  if (memory->hasEnded()) memory->giveBackWaiting(bytes);
}

void SparePools::tidyNow(CudaAllocator& allocator) {
  bool idle = false, time = false, first = false;
  {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock) return;  // the next replay does it
    const bool quiet =
        (!spare_.empty() || warmedUp_) && ++unused_ >= kIdle && !PartitionGraph::oneIsCaptured();
    idle = quiet && !spare_.empty();
    first = quiet && warmedUp_ && isTime(++quiets_);
    warmedUp_ = warmedUp_ && !quiet;
    time = !held_.empty() && isTime(++tidied_);
    noteWhetherToTidy();
  }
  if (idle) letGo(allocator);
  if (idle || time) tidyHeld(allocator);
  if (first) emptyIdleCache(allocator);
}

/// Steps that run captured have their memory in arenas. What the first ones took in PyTorch's own pool,
/// uncaptured or in between, nobody would ask for again; nor, before the first warm-up, what a compilation
/// took that timed kernels. The state of an optimizer would come to lie in a part of it, and keep the rest
/// for good. A loop that does ask gets it anew, as after torch.cuda.graph(), which empties the cache before
/// each capture. PyTorch empties the caches of all
/// GPUs, so nothing is done where another one has memory: a wait for its work, which may itself wait for
/// this thread's next launch, must not come out of a replay.
void SparePools::emptyIdleCache(CudaAllocator& allocator) const {
  if (usesOtherGpus(allocator)) return;
  if (isWorthEmptying(allocator.statsWithoutArenas(device_))) (void)allocator.tryEmptyCache({0, 0});
}

bool SparePools::usesOtherGpus(CudaAllocator& allocator) const {
  for (c10::DeviceIndex other = 0; other < c10::cuda::device_count(); ++other) {
    if (other != device_ && allocator.statsWithoutArenas(other).reserved_bytes[0].current > 0)
      return true;
  }
  return false;
}

void SparePools::tidyHeld(CudaAllocator& allocator) {
  std::vector<MemoryPool> held;
  {
    const std::lock_guard lock(mutex_);
    held.swap(held_);
  }
  WarmUpMemory* memory = memory_.load(std::memory_order_acquire);
  const auto isGone = [&](const MemoryPool& each) {
    if (!allocator.tryEmptyCache(each.id)) return false;
    if (each.segments.expired()) return true;
    // A gradient in the midst of a segment holds the pages that it lies on, not those around it.
    if (memory != nullptr) memory->endFreePages(allocator.base().snapshot(each.id, false).segments);
    return false;
  };
  held.erase(std::remove_if(held.begin(), held.end(), isGone), held.end());
  const std::lock_guard lock(mutex_);
  held_.insert(held_.end(), held.begin(), held.end());
  noteWhetherToTidy();
}

}  // namespace gravure
