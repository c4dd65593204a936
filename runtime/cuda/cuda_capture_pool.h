#pragma once
// Where partitions are captured: a stream and a graph pool, shared by the programs of one stream.

#include "runtime/cuda/cuda_allocator.h"

#include <c10/cuda/CUDAStream.h>

#include <memory>
#include <mutex>
#include <optional>

namespace gravure {

/// A stream to capture on, with the workspaces that libraries keep for it, and the pool that captures
/// draw from beyond the plan. Programs that are captured from one stream of the caller's share one: a
/// workspace each, 32 MiB and more, is much for the many programs of a graph-broken model. Their graphs
/// write to the same workspaces, so they may not run at once; replays from several streams are ordered.
/// Programs captured from different streams share nothing and may run at once. Memory of a graph that is
/// gone serves the next captures, and is given back with the pool.
class CapturePool {
 public:
  /// The one for programs captured from `caller`, which lives as long as somebody holds it.
  static std::shared_ptr<CapturePool> of(CudaAllocator& allocator, c10::cuda::CUDAStream caller);
  ~CapturePool();
  CapturePool(const CapturePool&) = delete;
  CapturePool& operator=(const CapturePool&) = delete;

  c10::cuda::CUDAStream stream() const { return stream_; }
  c10::MempoolId_t pool() const { return pool_; }

  /// Calls `launch`, which enqueues a graph of this pool on `current`, behind all graphs before it.
  template <typename Launch>
  void inOrder(c10::cuda::CUDAStream current, Launch&& launch) {
    // Held over the launch: another thread's graph comes wholly before or behind.
    std::lock_guard lock(mutex_);
    if (last_ != current) follow(current);
    launch();
  }
  /// Waits until the graphs of this pool are done, unless their stream is being captured.
  void finish() noexcept;

 private:
  CapturePool(CudaAllocator& allocator, c10::DeviceIndex device);
  void follow(c10::cuda::CUDAStream current);

  CudaAllocator& allocator_;
  const c10::cuda::CUDAStream stream_;
  const c10::MempoolId_t pool_;
  std::mutex mutex_;
  std::optional<c10::cuda::CUDAStream> last_;  // of the last launch
};

}  // namespace gravure
