#pragma once
// The arena's memory on a GPU: one block of PyTorch's own allocator.

#include "runtime/device.h"

#include <c10/core/Allocator.h>
#include <c10/cuda/CUDAStream.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace c10::cuda::CUDACachingAllocator {
class CUDAAllocator;
}

namespace gravure {

/// Tensors in a slab keep it alive, so that results outlive their program. A tensor's DataPtr has
/// no room for that (its context must be its address), so a table of all slabs counts them by
/// address. The functions on addresses may be called from any thread.
class CudaSlab final : public Slab, public std::enable_shared_from_this<CudaSlab> {
 public:
  /// Takes `bytes` for work of `stream`. Throws c10::OutOfMemoryError.
  static std::shared_ptr<CudaSlab> make(c10::cuda::CUDACachingAllocator::CUDAAllocator& allocator,
                                        c10::cuda::CUDAStream stream, int64_t bytes);
  ~CudaSlab() override;

  char* base() const override { return static_cast<char*>(memory_.get()); }
  int64_t bytes() const override { return bytes_; }

  /// The memory is given back only when the work that `stream` holds by then is done.
  void usedOn(c10::cuda::CUDAStream stream);

  /// `stream` reads tensors of the slab that the caller holds. Any thread.
  void readOn(c10::cuda::CUDAStream stream);
  /// Orders what `stream` gets next behind what the readers' streams hold now.
  void waitForReaders(c10::cuda::CUDAStream stream);

  /// One tensor more at `address`. False if that lies in no slab.
  static bool retain(void* address);
  /// One tensor less; may destroy the slab. False if `address` lies in no slab.
  static bool release(void* address);
  /// The slab that holds `address`, or nullptr.
  static std::shared_ptr<CudaSlab> find(const void* address);

 private:
  CudaSlab(c10::cuda::CUDACachingAllocator::CUDAAllocator& allocator, c10::DataPtr memory,
           int64_t bytes);

  c10::cuda::CUDACachingAllocator::CUDAAllocator& allocator_;
  c10::DataPtr memory_;
  int64_t bytes_ = 0;
  std::mutex readersMutex_;
  std::vector<c10::cuda::CUDAStream> readers_;
};

}  // namespace gravure
