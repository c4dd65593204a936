#include "ir/memory/memory_placement.h"

#include <algorithm>
#include <memory>
#include <numeric>

namespace gravure::placement {
namespace {

/// Positions 0..n-1, stably sorted by key[i] in [0, keys).
std::vector<int32_t> bucketSort(const std::vector<int32_t>& input, const std::vector<int32_t>& key,
                                int32_t keys) {
  std::vector<int32_t> start(static_cast<size_t>(keys) + 1, 0);
  for (int32_t i : input) ++start[key[i] + 1];
  std::partial_sum(start.begin(), start.end(), start.begin());
  std::vector<int32_t> sorted(input.size());
  for (int32_t i : input) sorted[start[key[i]]++] = i;
  return sorted;
}

std::vector<int32_t> indices(size_t n) {
  std::vector<int32_t> all(n);
  std::iota(all.begin(), all.end(), 0);
  return all;
}

/// Free and used blocks of an address range that grows at its top. Finds a free block whose size is
/// near the smallest that fits, in constant time: sizes fall into classes, 64 to each power of two
/// (the idea of TLSF: Masmano et al., 2004).
class FreeBlocks {
 public:
  explicit FreeBlocks(size_t expected) : heads_(kOctaves * kClasses, -1) {
    blocks_.reserve(expected);
  }

  int64_t top() const { return top_; }
  int64_t offsetOf(int32_t block) const { return blocks_[block].offset; }

  int32_t allocate(int64_t size) {
    const int32_t found = findFree(size);
    if (found < 0) return grow(size);
    removeFree(found);
    if (blocks_[found].size > size) splitTail(found, size);
    return found;
  }

  void release(int32_t block) {
    block = mergeWithNeighbours(block);
    addFree(block);
  }

 private:
  static constexpr int kOctaves = 64;
  static constexpr int kClasses = 64;
  static constexpr int kScan = 8;  // entries of one class that are looked at

  struct Block {
    int64_t offset = 0, size = 0;
    int32_t below = -1, above = -1;    // neighbours by address
    int32_t previous = -1, next = -1;  // in the list of its class
    bool free = false;
  };

  static int classOf(int64_t size) {
    if (size < kClasses) return static_cast<int>(size);
    const int octave = 63 - __builtin_clzll(static_cast<uint64_t>(size));  // >= 6
    const int sub = static_cast<int>(size >> (octave - 6)) & (kClasses - 1);
    return (octave - 5) * kClasses + sub;
  }

  int32_t findFree(int64_t size) const {
    const int own = classOf(size);
    if (const int32_t found = smallestOf(own, size); found >= 0) return found;
    int octave = own / kClasses;
    uint64_t mask =
        own % kClasses == kClasses - 1 ? 0 : full_[octave] & (~uint64_t{0} << (own % kClasses + 1));
    while (mask == 0) {
      if (++octave == kOctaves) return -1;
      mask = full_[octave];
    }
    return smallestOf(octave * kClasses + __builtin_ctzll(mask), size);
  }

  int32_t smallestOf(int cls, int64_t size) const {
    int32_t best = -1;
    int scanned = 0;
    for (int32_t b = heads_[cls]; b >= 0 && scanned < kScan; b = blocks_[b].next, ++scanned) {
      if (blocks_[b].size < size) continue;
      if (best < 0 || blocks_[b].size < blocks_[best].size) best = b;
    }
    return best;
  }

  void addFree(int32_t b) {
    Block& block = blocks_[b];
    const int cls = classOf(block.size);
    block.free = true;
    block.previous = -1;
    block.next = heads_[cls];
    if (block.next >= 0) blocks_[block.next].previous = b;
    heads_[cls] = b;
    full_[cls / kClasses] |= uint64_t{1} << (cls % kClasses);
  }

  void removeFree(int32_t b) {
    Block& block = blocks_[b];
    const int cls = classOf(block.size);
    block.free = false;
    if (block.next >= 0) blocks_[block.next].previous = block.previous;
    if (block.previous >= 0) {
      blocks_[block.previous].next = block.next;
    } else {
      heads_[cls] = block.next;
      if (block.next < 0) full_[cls / kClasses] &= ~(uint64_t{1} << (cls % kClasses));
    }
  }

  int32_t newBlock(int64_t offset, int64_t size) {
    int32_t b;
    if (spare_.empty()) {
      b = static_cast<int32_t>(blocks_.size());
      blocks_.emplace_back();
    } else {
      b = spare_.back();
      spare_.pop_back();
      blocks_[b] = Block{};
    }
    blocks_[b].offset = offset;
    blocks_[b].size = size;
    return b;
  }

  /// A free block at the top is taken into the new one.
  int32_t grow(int64_t size) {
    if (last_ >= 0 && blocks_[last_].free) {
      removeFree(last_);
      top_ += size - blocks_[last_].size;
      blocks_[last_].size = size;
      return last_;
    }
    const int32_t b = newBlock(top_, size);
    blocks_[b].below = last_;
    if (last_ >= 0) blocks_[last_].above = b;
    last_ = b;
    top_ += size;
    return b;
  }

  void splitTail(int32_t b, int64_t size) {
    const int32_t tail = newBlock(blocks_[b].offset + size, blocks_[b].size - size);
    blocks_[b].size = size;
    blocks_[tail].below = b;
    blocks_[tail].above = blocks_[b].above;
    if (blocks_[tail].above >= 0) blocks_[blocks_[tail].above].below = tail;
    blocks_[b].above = tail;
    if (last_ == b) last_ = tail;
    addFree(tail);
  }

  int32_t mergeWithNeighbours(int32_t b) {
    const int32_t below = blocks_[b].below;
    if (below >= 0 && blocks_[below].free) {
      removeFree(below);
      absorbAbove(below);
      b = below;
    }
    const int32_t above = blocks_[b].above;
    if (above >= 0 && blocks_[above].free) {
      removeFree(above);
      absorbAbove(b);
    }
    return b;
  }

  void absorbAbove(int32_t b) {
    const int32_t gone = blocks_[b].above;
    blocks_[b].size += blocks_[gone].size;
    blocks_[b].above = blocks_[gone].above;
    if (blocks_[b].above >= 0) blocks_[blocks_[b].above].below = b;
    if (last_ == gone) last_ = b;
    spare_.push_back(gone);
  }

  std::vector<Block> blocks_;
  std::vector<int32_t> spare_;
  std::vector<int32_t> heads_;
  uint64_t full_[kOctaves] = {};  // classes that hold a block
  int32_t last_ = -1;
  int64_t top_ = 0;
};

}  // namespace

Placement fitInTime(const Request& request, Direction direction) {
  const size_t n = request.count();
  const bool forward = direction == Direction::Forward;
  // Backward, time runs from the last position to the first, and a buffer begins at its end.
  std::vector<int32_t> birth(n), death(n);
  for (size_t i = 0; i < n; ++i) {
    birth[i] = forward ? request.begin[i] : request.positions - request.end[i];
    death[i] = forward ? request.end[i] : request.positions - request.begin[i];
  }
  const int32_t keys = request.positions + 1;
  const std::vector<int32_t> byDeath = bucketSort(indices(n), death, keys);
  // Of those born together the longest-lived come first, so that what dies first lies on top.
  const std::vector<int32_t> byBirth =
      bucketSort(std::vector<int32_t>(byDeath.rbegin(), byDeath.rend()), birth, keys);

  FreeBlocks blocks(n);
  std::vector<int32_t> blockOf(n, -1);
  Placement placed;
  placed.offset.resize(n);
  size_t dead = 0;
  for (int32_t i : byBirth) {
    for (; dead < n && death[byDeath[dead]] <= birth[i]; ++dead)
      blocks.release(blockOf[byDeath[dead]]);
    blockOf[i] = blocks.allocate(request.size[i]);
    placed.offset[i] = blocks.offsetOf(blockOf[i]);
  }
  placed.top = blocks.top();
  return placed;
}

namespace {

/// What was placed, ordered by offset, in chunks. A chunk that no member or every member of which
/// lives with a new buffer is passed at once.
class PlacedBuffers {
 public:
  /// The lowest offset at which `size` units are free over [begin, end).
  int64_t lowestGap(int32_t begin, int32_t end, int64_t size, int64_t* work) const {
    int64_t top = 0;
    for (const Summary& chunk : summaries_) {
      --*work;
      if (chunk.firstOffset - top >= size) return top;
      if (chunk.top <= top || end <= chunk.minBegin || begin >= chunk.maxEnd) continue;
      const bool allAlive = begin < chunk.minEnd && end > chunk.maxBegin;
      if (allAlive && chunk.innerGap < size) {
        top = chunk.top;
        continue;
      }
      if (scan(*chunk.members, begin, end, size, top, work)) return top;
    }
    return top;
  }

  void insert(int32_t begin, int32_t end, int64_t offset, int64_t size) {
    size_t c = chunkFor(offset);
    if (summaries_.empty()) {
      storage_.push_back(std::make_unique<Members>());
      summaries_.push_back(Summary{storage_.back().get()});
    } else if (summaries_[c].members->count == kChunk) {
      split(c);
      c = chunkFor(offset);
    }
    Members& m = *summaries_[c].members;
    const auto at =
        static_cast<int>(std::upper_bound(m.offset, m.offset + m.count, offset) - m.offset);
    const auto shift = [&](auto* array, auto value) {
      std::copy_backward(array + at, array + m.count, array + m.count + 1);
      array[at] = value;
    };
    shift(m.begin, begin);
    shift(m.end, end);
    shift(m.offset, offset);
    shift(m.top, offset + size);
    ++m.count;
    summarize(summaries_[c]);
  }

 private:
  static constexpr int kChunk = 64;

  struct Members {
    int32_t begin[kChunk], end[kChunk];
    int64_t offset[kChunk], top[kChunk];
    int count = 0;
  };
  struct Summary {
    Members* members = nullptr;
    int64_t firstOffset = 0, top = 0;
    int64_t innerGap = 0;  // the largest gap if all members are alive
    int32_t minBegin = 0, maxBegin = 0, minEnd = 0, maxEnd = 0;
  };

  /// True if a gap was found, at `top`; else `top` is raised over all members alive.
  static bool scan(const Members& m, int32_t begin, int32_t end, int64_t size, int64_t& top,
                   int64_t* work) {
    *work -= m.count;
    // Which members are alive is as good as random to a branch predictor, so it is found without one.
    uint8_t alive[kChunk];
    int count = 0;
    for (int i = 0; i < m.count; ++i) {
      alive[count] = static_cast<uint8_t>(i);
      count += (m.begin[i] < end) & (m.end[i] > begin) & (m.top[i] > top);
    }
    for (int a = 0; a < count; ++a) {
      const int i = alive[a];
      if (m.offset[i] - top >= size) return true;
      top = std::max(top, m.top[i]);
    }
    return false;
  }

  size_t chunkFor(int64_t offset) const {
    const auto after = std::upper_bound(
        summaries_.begin(), summaries_.end(), offset,
        [](int64_t wanted, const Summary& chunk) { return wanted < chunk.firstOffset; });
    return after == summaries_.begin() ? 0 : after - summaries_.begin() - 1;
  }

  void split(size_t c) {
    storage_.push_back(std::make_unique<Members>());
    Members& low = *summaries_[c].members;
    Members& high = *storage_.back();
    constexpr int half = kChunk / 2;
    std::copy(low.begin + half, low.begin + kChunk, high.begin);
    std::copy(low.end + half, low.end + kChunk, high.end);
    std::copy(low.offset + half, low.offset + kChunk, high.offset);
    std::copy(low.top + half, low.top + kChunk, high.top);
    low.count = half;
    high.count = kChunk - half;
    summaries_.insert(summaries_.begin() + c + 1, Summary{&high});
    summarize(summaries_[c]);
    summarize(summaries_[c + 1]);
  }

  static void summarize(Summary& chunk) {
    const Members& m = *chunk.members;
    chunk.firstOffset = m.offset[0];
    chunk.top = m.top[0];
    chunk.minBegin = chunk.maxBegin = m.begin[0];
    chunk.minEnd = chunk.maxEnd = m.end[0];
    chunk.innerGap = 0;
    for (int i = 1; i < m.count; ++i) {
      chunk.innerGap = std::max(chunk.innerGap, m.offset[i] - chunk.top);
      chunk.top = std::max(chunk.top, m.top[i]);
      chunk.minBegin = std::min(chunk.minBegin, m.begin[i]);
      chunk.maxBegin = std::max(chunk.maxBegin, m.begin[i]);
      chunk.minEnd = std::min(chunk.minEnd, m.end[i]);
      chunk.maxEnd = std::max(chunk.maxEnd, m.end[i]);
    }
  }

  std::vector<Summary> summaries_;
  std::vector<std::unique_ptr<Members>> storage_;
};

}  // namespace

bool placeAtLowestGap(const Request& request, const std::vector<int32_t>& order, int64_t limit,
                      int64_t* work, Placement& out) {
  PlacedBuffers placed;
  out.offset.assign(request.count(), -1);
  out.top = 0;
  for (int32_t i : order) {
    const int64_t offset =
        placed.lowestGap(request.begin[i], request.end[i], request.size[i], work);
    out.offset[i] = offset;
    out.top = std::max(out.top, offset + request.size[i]);
    if (out.top >= limit || *work < 0) return false;
    placed.insert(request.begin[i], request.end[i], offset, request.size[i]);
  }
  return true;
}

std::vector<int32_t> largestFirst(const Request& request) {
  std::vector<int32_t> order = indices(request.count());
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return request.size[a] > request.size[b]; });
  return order;
}

std::vector<int32_t> peakFirst(const Request& request) {
  std::vector<int64_t> change(static_cast<size_t>(request.positions) + 1, 0);
  for (size_t i = 0; i < request.count(); ++i) {
    change[request.begin[i]] += request.size[i];
    change[request.end[i]] -= request.size[i];
  }
  int32_t peak = 0;
  int64_t live = 0;
  for (int32_t t = 0; t < request.positions; ++t) {
    live += change[t];
    if (live == request.load) {
      peak = t;
      break;
    }
  }
  const auto atPeak = [&](int32_t i) { return request.begin[i] <= peak && peak < request.end[i]; };
  std::vector<int32_t> order = largestFirst(request);
  const auto middle = std::stable_partition(order.begin(), order.end(), atPeak);
  std::stable_sort(order.begin(), middle, [&](int32_t a, int32_t b) {
    return request.end[a] - request.begin[a] > request.end[b] - request.begin[b];
  });
  return order;
}

std::vector<int32_t> heaviestFirst(const Request& request) {
  std::vector<int32_t> order = indices(request.count());
  const auto weight = [&](int32_t i) {
    return static_cast<double>(request.size[i]) * (request.end[i] - request.begin[i]);
  };
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return weight(a) > weight(b); });
  return order;
}

}  // namespace gravure::placement
