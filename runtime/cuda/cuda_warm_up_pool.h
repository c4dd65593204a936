#pragma once
// The pool of PyTorch's allocator that one run of a program warms up in.

#include "runtime/cuda/cuda_allocator.h"
#include "runtime/cuda/cuda_ended_pools.h"
#include "runtime/cuda/cuda_libraries.h"

#include <c10/cuda/CUDAStream.h>

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

/// Between begin() and end(), what this thread allocates comes from one of the GPU's SparePools, where
/// it is left for the next warm-up. Not thread-safe, like its program.
class WarmUpPool {
 public:
  WarmUpPool(CudaAllocator& allocator, c10::DeviceIndex device)
      : allocator_(allocator), device_(device) {}
  ~WarmUpPool();
  WarmUpPool(const WarmUpPool&) = delete;
  WarmUpPool& operator=(const WarmUpPool&) = delete;

  /// `expected`: as Device::beginWarmUp() has it.
  void begin(int64_t expected);
  void end();

 private:
  void makeSegment(int64_t bytes);

  struct Taken {
    MemoryPool pool;
    c10::cuda::CUDAStream stream;
  };

  CudaAllocator& allocator_;
  const c10::DeviceIndex device_;
  std::optional<Taken> taken_;
  std::unique_ptr<PoolRouting> routing_;
  std::unique_ptr<PassingWorkspaces> workspaces_;
};

}  // namespace gravure
