#pragma once
// Pools to warm up in, while nobody warms up in them.

#include "runtime/cuda/cuda_ended_pools.h"
#include "runtime/cuda/cuda_warm_up_memory.h"

#include <c10/cuda/CUDAStream.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <vector>

namespace gravure {

class CudaAllocator;

/// Those of one GPU. A program takes one for each run that warms up, and leaves it to the next one, its
/// own or another program's: so programs that warm up one after another take what the eager step takes,
/// and one that is never called again (a graph that Dynamo compiled anew after its first call, say) keeps
/// nothing. Their memory is given back when a program is planned, when nobody has warmed up for some
/// replays, and when memory is asked back. In the second case, and before one is made, PyTorch's own cache
/// is emptied, too, if it lies idle. What somebody held when it was given back goes to later warm-ups once
/// it is free. Thread-safe; PyTorch's lock is never taken with its own held.
class SparePools {
 public:
  static SparePools& of(c10::DeviceIndex device);

  struct Taken {
    MemoryPool pool;
    int64_t segment = 0;  // bytes that are to be the first segment of a new one
  };
  /// One that was used on `stream`, whose blocks serve no other; else a new one. `who`'s until put().
  /// `expected`: as Device::beginWarmUp() has it. An empty pool in which the last step left many holes is
  /// given back, and a new one taken that begins with one segment of that size: PyTorch's allocator leaves
  /// fewer holes in it. Not where others took pools in `who`'s last step: what they need is not known.
  Taken take(CudaAllocator& allocator, c10::cuda::CUDAStream stream, const void* who,
             int64_t expected);
  void put(MemoryPool pool, c10::cuda::CUDAStream stream);

  /// Gives back all that is free. What somebody holds is given back by tidy() once it is free.
  void giveBack(CudaAllocator& allocator);
  /// Leaves it to PyTorch to give that back, where it empties its cache. True if there was any.
  bool letGo(CudaAllocator& allocator);

  /// The process is taking `bytes` from the driver: as much of what is spare, or was held, is given back.
  /// Eager's optimizer makes its state in the memory that its first backward has left idle, and warm-ups
  /// leave theirs here. Waits for the work on that. Nothing is done while anybody captures, or where another
  /// GPU has memory of this process: its work may wait for this thread's next launch.
  void makeRoom(CudaAllocator& allocator, int64_t bytes);

  /// Empties PyTorch's own cache if much of it is in no use. Not where another GPU has memory of this
  /// process, nor while anybody captures.
  void emptyIdleCache(CudaAllocator& allocator) const;

  /// Called by each replay, wherever it comes from. Looks after what is spare if nobody took it for
  /// some calls, and after what was held in giveBack() in the 1st, 2nd, 4th, 8th… call from there on.
  /// Waits for nothing but the streams that somebody recorded for what was held, and for the GPU where it
  /// empties PyTorch's cache: after the 1st, 2nd, 4th, 8th… time that warm-ups have come to an end.
  void tidy(CudaAllocator& allocator) {
    if (mayTidy_.load(std::memory_order_relaxed)) tidyNow(allocator);
    WarmUpMemory* memory = memory_.load(std::memory_order_acquire);
    if (memory != nullptr && memory->hasEnded()) memory->giveBack();
  }

 private:
  struct Spare {
    MemoryPool pool;
    c10::cuda::CUDAStream stream;
  };
  explicit SparePools(c10::DeviceIndex device) : device_(device) {}
  std::optional<MemoryPool> takeKnown(c10::cuda::CUDAStream stream);
  bool wasAlone(const void* who, bool begins);
  int64_t takeHad();
  bool letGoOf(CudaAllocator& allocator, const std::function<bool(const Spare&)>& isWanted);
  MemoryPool make(CudaAllocator& allocator);
  void hold(CudaAllocator& allocator, std::vector<MemoryPool> pools);
  void tidyNow(CudaAllocator& allocator);
  void tidyHeld(CudaAllocator& allocator);
  bool isTimeToEmpty();
  bool usesOtherGpus(CudaAllocator& allocator) const;
  void noteWhetherToTidy() { mayTidy_.store(!spare_.empty() || !held_.empty() || warmedUp_); }

  const c10::DeviceIndex device_;
  std::atomic<WarmUpMemory*> memory_{nullptr};  // once one was taken; not where it cannot map pages
  std::atomic<bool> mayTidy_{false};
  std::mutex mutex_;
  std::vector<Spare> spare_;
  std::vector<MemoryPool> held_;  // let go of, and not empty
  int64_t unused_ = 0;            // calls of tidy() since one was taken or put
  int64_t tidied_ = 0;            // since the last one was let go of
  bool warmedUp_ = false;         // somebody did, since it was last quiet
  int64_t quiets_ = 0;            // times that it was
  int64_t made_ = 0;              // pools, since there was none to take
  const void* lastTaker_ = nullptr;
  bool othersTook_ = false;  // since a step began
  int64_t had_ = 0;          // bytes of the pool that last made room, until another one is made
};

}  // namespace gravure
