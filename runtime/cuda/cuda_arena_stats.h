#pragma once
// What PyTorch says of a GPU's memory, with the arenas in it.

#include <c10/core/CachingDeviceAllocator.h>

#include <mutex>

namespace c10::cuda::CUDACachingAllocator {
class CUDAAllocator;
}

namespace gravure {

/// Adds the pages of one device's arenas, each once, to the statistics of PyTorch's allocator: as bytes
/// reserved, allocated, active and requested, of the large pool. Pages of warm-ups that PyTorch does
/// not count are reserved. Peaks are those of the sums.
class CudaArenaStats {
 public:
  using Base = c10::cuda::CUDACachingAllocator::CUDAAllocator;
  CudaArenaStats(Base& base, c10::DeviceIndex device) : base_(base), device_(device) {}

  /// `bytes` more (or less) are mapped.
  void add(int64_t bytes);
  /// Before pages of a warm-up are given back.
  void notePeaks();
  c10::CachingDeviceAllocator::DeviceStats withArenas();
  void resetAccumulated();
  void resetPeaks();

 private:
  c10::CachingDeviceAllocator::DeviceStats sums() const;
  void startPeaks();

  Base& base_;
  const c10::DeviceIndex device_;
  std::mutex mutex_;
  c10::CachingAllocator::Stat arenas_;
  /// Peaks of the time before the last change; the base's are those since then.
  c10::CachingDeviceAllocator::DeviceStats earlier_;
};

}  // namespace gravure
