#include "runtime/cuda/cuda_arena_stats.h"

#include "runtime/cuda/cuda_warm_up_memory.h"

#include <c10/cuda/CUDACachingAllocator.h>

#include <algorithm>

namespace gravure {
namespace {

using c10::CachingAllocator::Stat;
using c10::CachingAllocator::StatType;
using c10::CachingDeviceAllocator::DeviceStats;

constexpr auto kByteSums = {&DeviceStats::allocated_bytes, &DeviceStats::reserved_bytes,
                            &DeviceStats::active_bytes, &DeviceStats::requested_bytes};
constexpr auto kOtherArrays = {&DeviceStats::allocation, &DeviceStats::segment,
                               &DeviceStats::active, &DeviceStats::inactive_split,
                               &DeviceStats::inactive_split_bytes};
constexpr auto kStats = {&DeviceStats::oversize_allocations, &DeviceStats::oversize_segments};

/// Peaks of `from` into those of `into`, where they are higher.
void raisePeaks(DeviceStats& into, const DeviceStats& from) {
  const auto raise = [](Stat& stat, const Stat& other) {
    stat.peak = std::max(stat.peak, other.peak);
  };
  for (const auto& arrays : {kByteSums, kOtherArrays}) {
    for (auto array : arrays) {
      for (size_t i = 0; i < (into.*array).size(); ++i) raise((into.*array)[i], (from.*array)[i]);
    }
  }
  for (auto stat : kStats) raise(into.*stat, from.*stat);
}

}  // namespace

DeviceStats CudaArenaStats::sums() const {
  DeviceStats stats = base_.getDeviceStats(device_);
  for (auto array : kByteSums) {
    for (const StatType type : {StatType::AGGREGATE, StatType::LARGE_POOL}) {
      Stat& stat = (stats.*array)[static_cast<size_t>(type)];
      stat.current += arenas_.current;
      stat.peak += arenas_.current;
      stat.allocated += arenas_.allocated;
      stat.freed += arenas_.freed;
    }
  }
  const WarmUpMemory* warmUps = WarmUpMemory::known(device_);
  for (const StatType type : {StatType::AGGREGATE, StatType::LARGE_POOL}) {
    Stat& stat = stats.reserved_bytes[static_cast<size_t>(type)];
    stat.current += warmUps == nullptr ? 0 : warmUps->uncounted();
    stat.peak = std::max(stat.peak, stat.current);
  }
  return stats;
}

/// From now on the base's peaks are those of the time to come.
void CudaArenaStats::startPeaks() {
  raisePeaks(earlier_, sums());
  base_.resetPeakStats(device_);
}

void CudaArenaStats::notePeaks() {
  std::lock_guard lock(mutex_);
  startPeaks();
}

void CudaArenaStats::add(int64_t bytes) {
  if (bytes == 0) return;
  std::lock_guard lock(mutex_);
  startPeaks();
  if (bytes > 0) {
    arenas_.increase(static_cast<size_t>(bytes));
  } else {
    arenas_.decrease(static_cast<size_t>(-bytes));
  }
}

DeviceStats CudaArenaStats::withArenas() {
  std::lock_guard lock(mutex_);
  DeviceStats stats = sums();
  raisePeaks(stats, earlier_);
  return stats;
}

void CudaArenaStats::resetAccumulated() {
  std::lock_guard lock(mutex_);
  base_.resetAccumulatedStats(device_);
  arenas_.reset_accumulated();
}

void CudaArenaStats::resetPeaks() {
  std::lock_guard lock(mutex_);
  base_.resetPeakStats(device_);
  earlier_ = DeviceStats();
}

}  // namespace gravure
