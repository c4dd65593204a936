#pragma once
// The pool of PyTorch's allocator that one program warms up in.

#include "runtime/cuda/cuda_allocator.h"
#include "runtime/cuda/cuda_ended_pools.h"
#include "runtime/cuda/cuda_libraries.h"
#include "runtime/cuda/cuda_warm_up_memory.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

namespace gravure {

/// While one lives, what `routed` says yes to is allocated from `pool`. It is asked on the thread that
/// allocates, for the stream that it allocates for. To PyTorch this is a capture: while there is one, it
/// empties no cache, neither when it is asked to nor when it is out of memory.
class PoolRouting {
 public:
  PoolRouting(CudaAllocator& allocator, c10::DeviceIndex device, c10::MempoolId_t pool,
              std::function<bool(cudaStream_t)> routed);
  ~PoolRouting();
  PoolRouting(const PoolRouting&) = delete;
  PoolRouting& operator=(const PoolRouting&) = delete;

 private:
  friend class RoutingsPaused;
  void begin();
  void end();

  CudaAllocator& allocator_;
  const c10::DeviceIndex device_;
  const c10::MempoolId_t pool_;
  const std::function<bool(cudaStream_t)> routed_;
  bool begun_ = false;
};

/// While one lives, nothing of this process' is routed: what other threads allocate meanwhile in a warm-up
/// comes from where eager's does.
class RoutingsPaused {
 public:
  RoutingsPaused();
  ~RoutingsPaused();
  RoutingsPaused(const RoutingsPaused&) = delete;
  RoutingsPaused& operator=(const RoutingsPaused&) = delete;

  /// Whether there were any.
  bool any() const { return !paused_.empty(); }

 private:
  const std::unique_lock<std::mutex> still_;  // no routing begins or ends
  std::vector<PoolRouting*> paused_;
};

/// Whether the thread's allocations come from a WarmUpPool.
bool isWarmingUp();

/// Between begin() and end(), what this thread allocates comes from the pool, which drop() gives back.
/// What somebody holds then is given back by tidy() once it is free. Not thread-safe, like its program.
/// Where it ends, it leaves its pools to EndedPools.
class WarmUpPool {
 public:
  WarmUpPool(CudaAllocator& allocator, c10::DeviceIndex device)
      : allocator_(allocator), device_(device) {}
  ~WarmUpPool();
  WarmUpPool(const WarmUpPool&) = delete;
  WarmUpPool& operator=(const WarmUpPool&) = delete;

  void begin();
  void end();
  /// The next begin() makes another pool.
  void drop();
  /// The same, and leaves what somebody holds to EndedPools.
  void leave();

  /// Called by each replay: gives back what is free by now and has no work left. Looks after what was
  /// held at drop() in the 1st, 2nd, 4th, 8th… call from there on. Waits for nothing but the streams
  /// that somebody recorded for what was held.
  void tidy() {
    if (!dropped_.empty() && isTime(++tidied_)) tidyDropped();
    if (memory_ != nullptr && memory_->hasEnded()) memory_->giveBack();
  }

  /// Where the pool lies; nullptr before the first begin(), and where the GPU cannot map pages.
  WarmUpMemory* memory() const { return memory_; }

 private:
  bool letGo();
  static bool isTime(int64_t call) { return (call & (call - 1)) == 0 || call % 1024 == 0; }
  void tidyDropped();

  CudaAllocator& allocator_;
  const c10::DeviceIndex device_;
  WarmUpMemory* memory_ = nullptr;
  std::optional<MemoryPool> pool_;   // that we hold a use of
  std::vector<MemoryPool> dropped_;  // that were not empty
  int64_t tidied_ = 0;               // since the last drop()
  std::unique_ptr<PoolRouting> routing_;
  std::unique_ptr<PassingWorkspaces> workspaces_;
};

}  // namespace gravure
