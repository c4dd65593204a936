#include "runtime/cuda/cuda_warm_up_memory.h"

#include "runtime/cuda/cuda_allocator.h"
#include "runtime/cuda/cuda_arena_stats.h"
#include "runtime/cuda/cuda_pages.h"

#include <torch/csrc/cuda/CUDAPluggableAllocator.h>

#include <algorithm>
#include <array>
#include <unordered_map>

namespace gravure {
namespace {

using c10::cuda::CUDAStream;
using c10::cuda::CUDACachingAllocator::BlockInfo;
using c10::cuda::CUDACachingAllocator::SegmentInfo;

// What the caller keeps lies on small pages: little, as a loss.
constexpr Reservation kLarge{int64_t{1} << 43, int64_t{1} << 41, int64_t{1} << 36};
constexpr Reservation kSmall{int64_t{1} << 41, int64_t{1} << 38, int64_t{1} << 36};

/// By device. Never destroyed.
struct Memories {
  std::mutex mutex;
  std::array<std::atomic<WarmUpMemory*>, 64> byDevice{};

  static Memories& get() {
    static auto* memories = new Memories;
    return *memories;
  }
};

int64_t pagesIn(int64_t bytes, int64_t page) { return (bytes + page - 1) / page; }

}  // namespace

WarmUpMemory& WarmUpMemory::of(c10::DeviceIndex device) {
  if (WarmUpMemory* memory = known(device)) return *memory;
  Memories& all = Memories::get();
  std::lock_guard lock(all.mutex);
  auto& memory = all.byDevice.at(static_cast<size_t>(device));
  if (memory.load() == nullptr) {
    memory.store(new WarmUpMemory(device));
    // Whoever is let in after the store is told by openArenasTo().
    for (const c10::DeviceIndex other : openedTo(device)) memory.load()->openTo(other);
  }
  return *memory.load();
}

WarmUpMemory* WarmUpMemory::tryOf(c10::DeviceIndex device) {
  if (!whyNoPages(device).empty()) return nullptr;
  try {
    return &of(device);
  } catch (const c10::Error&) {
    return nullptr;  // there are no addresses, which the arena's remark says, too
  }
}

WarmUpMemory* WarmUpMemory::known(c10::DeviceIndex device) {
  return Memories::get().byDevice.at(static_cast<size_t>(device)).load(std::memory_order_acquire);
}

bool WarmUpMemory::anyContains(const void* address) {
  const auto& all = Memories::get().byDevice;
  return std::any_of(all.begin(), all.end(), [&](const auto& each) {
    const WarmUpMemory* memory = each.load(std::memory_order_acquire);
    return memory != nullptr &&
           (memory->large_.contains(address) || memory->small_.contains(address));
  });
}

WarmUpMemory::WarmUpMemory(c10::DeviceIndex device)
    : driver_(device),
      segmentsOfPools_(torch::cuda::CUDAPluggableAllocator::createCustomAllocator(
          [this](size_t bytes, int, cudaStream_t) { return addSegment(bytes); },
          [this](void* address, size_t, int, cudaStream_t) { dropSegment(address); })),
      large_(rangeOf(driver_.largePage(), kLarge)), small_(rangeOf(driver_.smallPage(), kSmall)),
      openTo_({device}) {}

WarmUpMemory::Range WarmUpMemory::rangeOf(int64_t page, const Reservation& wanted) const {
  const auto addresses = driver_.reserve(wanted);
  Range range;
  range.base = addresses.base;
  range.bytes = addresses.bytes;
  range.page = page;
  return range;
}

bool WarmUpMemory::Range::isFree(int64_t first, int64_t end) const {
  const auto it = pages.lower_bound(first);
  return it == pages.end() || it->first >= end;
}

/// Where `size` bytes go, on free addresses and the rest of the last page; -1 if there are none.
int64_t WarmUpMemory::Range::place(int64_t size) const {
  const int64_t all = bytes / page, end = pagesIn(open + size, page);
  if (end <= all && isFree(pagesIn(open, page), end)) return open;
  const int64_t count = pagesIn(size, page);
  int64_t first = 0;
  for (const auto& [number, taken] : pages) {
    if (number - first >= count) break;
    first = number + 1;
  }
  return first + count <= all ? first * page : -1;
}

void* WarmUpMemory::addSegment(size_t bytes) {
  std::lock_guard lock(mutex_);
  const DeviceScope here(driver_.device());
  const auto size = static_cast<int64_t>(bytes);
  // What the caller keeps of a warm-up is small mostly: it shall not hold a large page.
  Range& range = size <= small_.page ? small_ : large_;
  const int64_t at = range.place(size);
  if (at < 0) return nullptr;
  const int64_t first = at / range.page, end = pagesIn(at + size, range.page);
  if (!addPages(range, pagesIn(at, range.page), end)) return nullptr;
  for (int64_t i = first; i < end; ++i) {
    Page& page = range.pages.at(i);
    ++page.segments;
    ++page.addresses;
    page.streams.insert(c10::cuda::getCurrentCUDAStream(driver_.device()));
  }
  range.open = at + size;
  uncounted_ -= size;
  segments_.emplace(range.base + at, Segment{size, {}});
  return range.base + at;
}

/// Memory behind the pages from `first` to `end`, that of ended warm-ups first; false, and nothing is
/// mapped, if there is not enough.
bool WarmUpMemory::addPages(Range& range, int64_t first, int64_t end) {
  const auto ended = take(range, end - first, c10::cuda::getCurrentCUDAStream(driver_.device()));
  std::vector<PageSource::Piece> pieces;
  const auto undo = [&] {
    for (const auto& piece : pieces) driver_.destroy(piece.handle);
  };
  try {
    for (int64_t i = first; i < end; ++i) {
      const auto old = static_cast<size_t>(i - first);
      PageHandle handle = old < ended.size() ? ended[old] : driver_.create(range.page);
      if (handle == 0 && unmapEnded(true) > 0) handle = driver_.create(range.page);
      if (handle == 0) {
        undo();
        return false;
      }
      pieces.push_back({range.base + i * range.page, range.page, handle});
    }
    driver_.map(pieces, openTo_);
  } catch (...) {
    undo();
    throw;
  }
  for (int64_t i = first; i < end; ++i) range.pages[i].handle = pieces[i - first].handle;
  uncounted_ += (end - first) * range.page;
  return true;
}

void WarmUpMemory::dropSegment(void* address) {
  std::lock_guard lock(mutex_);
  const auto segment = segments_.find(address);
  TORCH_INTERNAL_ASSERT(segment != segments_.end(), "no warm-up has memory there");
  Range& range = large_.contains(address) ? large_ : small_;
  const auto& [size, ended] = segment->second;
  const int64_t at = static_cast<char*>(address) - range.base;
  for (int64_t i = at / range.page; i < pagesIn(at + size, range.page); ++i) {
    Page& page = range.pages.at(i);
    --page.addresses;
    if (ended.count(i) == 0) endPage(range, i);
    if (page.unmapped && page.addresses == 0) range.pages.erase(i);
  }
  uncounted_ += size;
  segments_.erase(segment);
}

/// One segment fewer needs it.
void WarmUpMemory::endPage(Range& range, int64_t number) {
  Page& page = range.pages.at(number);
  if (--page.segments > 0) return;
  page.ended = true;
  ++ended_;
  if (range.open / range.page == number) range.open = (number + 1) * range.page;
}

void WarmUpMemory::endFreePages(const std::vector<SegmentInfo>& segments) {
  std::lock_guard lock(mutex_);
  for (const SegmentInfo& segment : segments) {
    const auto known = segments_.find(reinterpret_cast<void*>(segment.address));
    if (known == segments_.end()) continue;
    Range& range = large_.contains(known->first) ? large_ : small_;
    const int64_t at = static_cast<char*>(known->first) - range.base;
    std::set<int64_t> used;
    int64_t block = at;
    for (const BlockInfo& each : segment.blocks) {
      const int64_t end = block + static_cast<int64_t>(each.size);
      for (int64_t i = block / range.page; each.active && i < pagesIn(end, range.page); ++i)
        used.insert(i);
      block = end;
    }
    auto& [size, ended] = known->second;
    for (int64_t i = at / range.page; i < pagesIn(at + size, range.page); ++i) {
      if (used.count(i) == 0 && ended.insert(i).second) endPage(range, i);
    }
  }
}

std::vector<PageHandle> WarmUpMemory::takeEnded(int64_t most, CUDAStream stream) {
  std::lock_guard lock(mutex_);
  const DeviceScope here(driver_.device());
  return take(large_, most, stream);
}

std::vector<PageHandle> WarmUpMemory::take(Range& range, int64_t most, CUDAStream stream) {
  std::vector<PageHandle> taken;
  if (!hasEnded()) return taken;
  if (isCapturing(stream)) return taken;  // it cannot be told to come after anything
  markEnded();
  std::set<CudaEvent*> before;  // what the stream has been told to come after
  std::vector<Page*> found;
  for (auto& [number, page] : range.pages) {
    if (static_cast<int64_t>(found.size()) == most) break;
    if (!page.ended || page.taken || page.unmapped || page.marks.empty()) continue;
    for (const auto& mark : page.marks) {
      if (before.insert(mark.get()).second) mark->block(stream);
    }
    found.push_back(&page);
  }
  // From here on nothing throws: a page that is marked as taken, and not returned, would be lost.
  taken.reserve(found.size());
  for (Page* page : found) {
    page->taken = true;
    taken.push_back(page->handle);
    uncounted_ -= range.page;
  }
  return taken;
}

/// Marks the end of the work on pages that have ended, but where a stream of theirs is being captured.
void WarmUpMemory::markEnded() {
  std::unordered_map<CUDAStream, std::shared_ptr<CudaEvent>> made;
  const auto markOf = [&](CUDAStream stream) {
    auto& mark = made[stream];
    if (!mark && !isCapturing(stream)) {
      mark = std::make_shared<CudaEvent>();
      mark->record(stream);
    }
    return mark;
  };
  for (Range* range : {&large_, &small_}) {
    for (auto& [number, page] : range->pages) {
      if (!page.ended || page.unmapped || !page.marks.empty()) continue;
      for (const CUDAStream stream : page.streams) page.marks.push_back(markOf(stream));
      if (std::count(page.marks.begin(), page.marks.end(), nullptr) > 0) page.marks.clear();
    }
  }
}

int64_t WarmUpMemory::unmapEnded(bool wait, int64_t most) {
  markEnded();
  int64_t freed = 0;
  std::unordered_map<const CudaEvent*, bool> done;  // a mark is that of hundreds of pages
  const auto isDone = [&](const auto& mark) {
    const auto [known, isNew] = done.try_emplace(mark.get());
    if (isNew && wait) mark->synchronize();
    if (isNew) known->second = mark->query();
    return known->second;
  };
  for (Range* range : {&large_, &small_}) {
    for (auto it = range->pages.begin(); it != range->pages.end();) {
      Page& page = it->second;
      if (freed >= most || !page.ended || page.unmapped || page.marks.empty() ||
          !std::all_of(page.marks.begin(), page.marks.end(), isDone)) {
        ++it;
        continue;
      }
      driver_.unmap(range->base + it->first * range->page, range->page);
      if (!page.taken) {
        driver_.destroy(page.handle);
        uncounted_ -= range->page;
        freed += range->page;
      }
      --ended_;
      page.unmapped = true;
      it = page.addresses > 0 ? std::next(it) : range->pages.erase(it);
    }
  }
  return freed;
}

int64_t WarmUpMemory::giveBackEnded(bool wait, int64_t most) {
  CudaAllocator::install().stats(driver_.device()).notePeaks();
  std::lock_guard lock(mutex_);
  const DeviceScope here(driver_.device());
  return unmapEnded(wait, most);
}

void WarmUpMemory::openTo(c10::DeviceIndex device) {
  std::lock_guard lock(mutex_);
  const DeviceScope here(driver_.device());
  if (!openTo_.insert(device).second) return;
  for (const Range* range : {&large_, &small_}) {
    for (const auto& [number, page] : range->pages) {
      if (!page.unmapped) driver_.open(range->base + number * range->page, range->page, {device});
    }
  }
}

}  // namespace gravure
