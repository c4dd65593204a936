#pragma once
// The memory that programs warm up in on a GPU: pages, which the arena takes over.

#include "runtime/cuda/cuda_event.h"
#include "runtime/cuda/cuda_page_driver.h"

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>

#include <atomic>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <unordered_set>
#include <vector>

namespace gravure {

/// Where the segments of the warm-ups' pools come from, for PyTorch's allocator. cudaFree waits for
/// all work of the device; a page that is given back here stays mapped until the work on it is done,
/// which is asked, not waited for. Meanwhile an arena may have it, or the next warm-up: their work
/// comes behind, on the same stream or ordered. So a program's arena takes no memory beside its
/// warm-up's, and the warm-ups of many programs little more than the largest.
///
/// PyTorch's allocator holds its lock where it makes and gives back segments: nothing here takes that lock,
/// or that of the arenas, with its own held.
class WarmUpMemory {
 public:
  /// That of one GPU, which must be able to map pages. Never destroyed: PyTorch may free results of a
  /// warm-up while the process ends.
  static WarmUpMemory& of(c10::DeviceIndex device);
  /// The same, or nullptr where the GPU cannot map pages, or has no addresses for them.
  static WarmUpMemory* tryOf(c10::DeviceIndex device);
  /// The same, or nullptr if there never was one.
  static WarmUpMemory* known(c10::DeviceIndex device);
  /// Whether `address` lies in that of any GPU.
  static bool anyContains(const void* address);

  WarmUpMemory(const WarmUpMemory&) = delete;
  WarmUpMemory& operator=(const WarmUpMemory&) = delete;

  /// What PyTorch's pools take segments from, as torch.cuda.MemPool has it for memory of others.
  c10::cuda::CUDACachingAllocator::CUDAAllocator& segments() const { return *segmentsOfPools_; }

  /// Large pages on which nothing lies any more, `most` at most: the caller's from now on. What
  /// `stream` gets next comes after the work on them.
  std::vector<PageHandle> takeEnded(int64_t most, c10::cuda::CUDAStream stream);

  /// `segments`: what PyTorch's allocator has from here in a pool of which nobody will allocate any more.
  /// A page ends once no block in use lies on it, and not only with the whole segment.
  void endFreePages(const std::vector<c10::cuda::CUDACachingAllocator::SegmentInfo>& segments);

  /// Whether giveBack() might find something.
  bool hasEnded() const { return ended_.load(std::memory_order_relaxed) > 0; }
  /// Unmaps pages on which nothing lies and no work is left, and frees those that nobody took.
  /// Returns the bytes freed. The second one waits for the work, and stops behind `most` bytes.
  int64_t giveBack() { return giveBackEnded(false, kAll); }
  int64_t giveBackWaiting(int64_t most = kAll) { return giveBackEnded(true, most); }

  /// Kernels on `device`, too, may use what lies here.
  void openTo(c10::DeviceIndex device);

  /// Physical bytes that PyTorch's statistics do not count among its segments.
  int64_t uncounted() const { return uncounted_.load(std::memory_order_relaxed); }
  int64_t largePage() const { return driver_.largePage(); }

 private:
  static constexpr int64_t kAll = std::numeric_limits<int64_t>::max();

  struct Page {
    PageHandle handle = 0;
    int32_t segments = 0;                               // that need it
    int32_t addresses = 0;                              // segments that have its addresses
    bool ended = false;                                 // was needed, and is not any more
    bool taken = false;                                 // the handle is somebody else's
    bool unmapped = false;                              // only addresses are left
    std::unordered_set<c10::cuda::CUDAStream> streams;  // that segments on it were made for
    std::vector<std::shared_ptr<CudaEvent>> marks;      // behind its last work, once ended
  };
  struct Segment {
    int64_t bytes = 0;
    std::set<int64_t> ended;  // pages that it does not need any more
  };
  /// Segments one behind the other, on pages of one size.
  struct Range {
    char* base = nullptr;
    int64_t bytes = 0, page = 0;
    int64_t open = 0;               // behind the last segment
    std::map<int64_t, Page> pages;  // by number

    bool contains(const void* address) const {
      return static_cast<size_t>(static_cast<const char*>(address) - base) <
             static_cast<size_t>(bytes);
    }
    int64_t place(int64_t size) const;
    bool isFree(int64_t first, int64_t end) const;
  };

  explicit WarmUpMemory(c10::DeviceIndex device);
  /// nullptr if there is no memory for it.
  void* addSegment(size_t bytes);
  void dropSegment(void* address);
  void endPage(Range& range, int64_t number);
  Range rangeOf(int64_t page, const Reservation& wanted) const;
  bool addPages(Range& range, int64_t first, int64_t end);
  std::vector<PageHandle> take(Range& range, int64_t most, c10::cuda::CUDAStream stream);
  int64_t giveBackEnded(bool wait, int64_t most);
  int64_t unmapEnded(bool wait, int64_t most = kAll);
  void markEnded();

  const PageDriver driver_;
  const std::shared_ptr<c10::cuda::CUDACachingAllocator::CUDAAllocator> segmentsOfPools_;
  mutable std::mutex mutex_;
  Range large_, small_;
  std::map<void*, Segment> segments_;  // by address
  std::set<c10::DeviceIndex> openTo_;
  std::atomic<int64_t> ended_{0};  // pages
  std::atomic<int64_t> uncounted_{0};
};

}  // namespace gravure
