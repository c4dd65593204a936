#include "runtime/cuda/cuda_capture_pool.h"

#include "runtime/cuda/cuda_end_of_life.h"
#include "runtime/cuda/cuda_ended_pools.h"
#include "runtime/cuda/cuda_event.h"
#include "runtime/cuda/cuda_libraries.h"
#include "runtime/device/call_faults.h"

#include <ATen/core/CachingHostAllocator.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>

#include <map>
#include <vector>

namespace gravure {

namespace {

/// Streams to capture on, kept for the next pool. PyTorch's own pool of streams would hand out one that
/// other code may be using; and a stream that the allocator knows is never destroyed.
class CaptureStreams {
 public:
  static CaptureStreams& get() {
    static auto* streams = new CaptureStreams;
    return *streams;
  }

  c10::cuda::CUDAStream take(c10::DeviceIndex device) {
    std::lock_guard lock(mutex_);
    auto& idle = idle_[device];
    cudaStream_t stream = nullptr;
    if (idle.empty()) {
      c10::cuda::CUDAGuard guard(device);
      passCall("the making of a stream");
      C10_CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    } else {
      stream = idle.back();
      idle.pop_back();
    }
    return c10::cuda::getStreamFromExternal(stream, device);
  }

  void giveBack(c10::cuda::CUDAStream stream) {
    std::lock_guard lock(mutex_);
    idle_[stream.device_index()].push_back(stream.stream());
  }

 private:
  std::mutex mutex_;
  std::map<c10::DeviceIndex, std::vector<cudaStream_t>> idle_;
};

/// Pools in use, by the caller's stream. Never destroyed.
struct Pools {
  std::mutex mutex;
  std::map<std::pair<c10::DeviceIndex, c10::StreamId>, std::weak_ptr<CapturePool>> byStream;

  static Pools& get() {
    static auto* pools = new Pools;
    return *pools;
  }
};

}  // namespace

std::shared_ptr<CapturePool> CapturePool::of(CudaAllocator& allocator,
                                             c10::cuda::CUDAStream caller) {
  Pools& pools = Pools::get();
  std::lock_guard lock(pools.mutex);
  auto& known = pools.byStream[{caller.device_index(), caller.id()}];
  std::shared_ptr<CapturePool> found = known.lock();
  if (!found) {
    found.reset(new CapturePool(allocator, caller.device_index()));
    known = found;
  }
  return found;
}

CapturePool::CapturePool(CudaAllocator& allocator, c10::DeviceIndex device)
    : allocator_(allocator), stream_(CaptureStreams::get().take(device)),
      pool_(at::cuda::graph_pool_handle()) {
  EndedPools::of(device).giveBack();
  bool made = false;
  try {
    // A pool whose last use has ended cannot be used again, and a failed capture may be the only one.
    passCall("the making of a pool");
    allocator_.createOrIncrefPool(device, pool_, nullptr);
    made = true;
    passCall("the making of a pool of pinned memory");
    at::HostAllocator* pinned = at::getHostAllocator(at::kCUDA);
    pinned->begin_allocate_to_pool(pool_, [](c10::Stream) { return false; });
    pinned->end_allocate_to_pool(pool_);
  } catch (...) {
    if (made) atEnd("the end of a pool", [&] { allocator_.releasePool(device, pool_); });
    CaptureStreams::get().giveBack(stream_);
    throw;
  }
}

CapturePool::~CapturePool() {
  const c10::DeviceIndex device = stream_.device_index();
  atEnd("the end of a graph pool", [&] {
    dropWorkspaces(stream_);
    allocator_.releasePool(device, pool_);
    at::getHostAllocator(at::kCUDA)->release_pool(pool_);
    EndedPools::of(device).add({pool_, {}});
  });
  CaptureStreams::get().giveBack(stream_);
}

void CapturePool::finish() noexcept {
  std::optional<c10::cuda::CUDAStream> last;
  {
    const std::lock_guard lock(mutex_);
    last = last_;
  }
  if (last) (void)LastWork({last->unwrap()}).wait();  // it comes behind those of other streams
}

void CapturePool::follow(c10::cuda::CUDAStream current) {
  TORCH_CHECK(!last_ || tryOrder(*last_, current),
              "the stream of the last replay is being captured by other code, so this one cannot "
              "come behind it");
  last_ = current;
}

}  // namespace gravure
