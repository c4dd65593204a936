#pragma once
// Pools of PyTorch's allocator whose use has ended, and which may still have memory.

#include <c10/cuda/CUDACachingAllocator.h>

#include <memory>
#include <mutex>
#include <vector>

namespace gravure {

/// A pool that was made here.
struct MemoryPool {
  c10::MempoolId_t id{0, 0};
  /// PyTorch's pool holds it while it has any; none: cudaMalloc's.
  std::weak_ptr<c10::cuda::CUDACachingAllocator::CUDAAllocator> segments;
};

/// Those of one GPU. To give their memory back may be to call cudaFree, which waits for the GPU, and is
/// refused while anybody captures: so it is not done where a program is dropped, on whatever thread the
/// garbage collector runs, but when the next pool is made or memory is asked back.
/// torch.cuda.empty_cache() does it, too, and so does PyTorch where it is out of memory.
class EndedPools {
 public:
  static EndedPools& of(c10::DeviceIndex device);
  void add(MemoryPool pool) noexcept;
  /// Of all that PyTorch lets go now. Waits for the GPU if one of them has memory of cudaMalloc's.
  void giveBack();

 private:
  std::mutex mutex_;
  std::vector<MemoryPool> pools_;
};

}  // namespace gravure
