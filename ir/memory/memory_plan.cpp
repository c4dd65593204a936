#include "ir/memory/memory_plan.h"

#include "ir/core/counted.h"
#include "ir/memory/memory_placement.h"

#include <c10/util/Exception.h>
#include <llvm/Support/Format.h>
#include <llvm/Support/raw_ostream.h>

#include <algorithm>
#include <set>

namespace gravure {
namespace {

using placement::Direction;
using placement::Placement;
using placement::Request;

/// Comparisons that placing at the lowest gap may take, over all orders: it keeps the planner linear,
/// whatever the shape, and unlike a clock it gives the same plan everywhere.
constexpr int64_t kWork = 1'000'000;
constexpr int64_t kWorkPerBuffer = 50;
/// A plan this near to LOAD is not worth improving.
constexpr double kGoodRatio = 1.001;
/// Up to so many buffers, orders are mended one buffer at a time, for so many comparisons each: one for
/// every few bytes that mending could gain, since a plan is made anew for each size and each call in flight.
constexpr size_t kMendedBuffers = 5'000;
constexpr int64_t kMendingWork = 3'000'000;
constexpr int64_t kBytesPerComparison = 4;
/// Not worth mending: a plan this near to LOAD, and over it by so few bytes.
constexpr double kFairRatio = 1.01;
constexpr int64_t kSmallGap = 1 << 20;
/// How far up the order a buffer moves: to the half of its position, the eighth, the front, the third.
/// Small and shallow moves do best on some programs, bold ones on others.
constexpr std::ptrdiff_t kMendingDivisors[] = {2, 8, 1'000'000, 3};

int64_t unitsOf(int64_t bytes, int64_t alignment) { return (bytes + alignment - 1) / alignment; }

void checkBuffer(const Buffer& buffer, size_t index) {
  TORCH_CHECK(buffer.begin < buffer.end && buffer.bytes > 0, "buffer ", index, " ('", buffer.label,
              "') lives from position ", buffer.begin, " to ", buffer.end, " with ", buffer.bytes,
              " bytes; it needs at least one position and one byte");
}

/// Numbers the positions densely; those at which nothing begins or ends fall away if there are many.
Request makeRequest(const std::vector<Buffer>& buffers, int64_t alignment) {
  Request request;
  const size_t n = buffers.size();
  request.begin.resize(n);
  request.end.resize(n);
  request.size.resize(n);
  if (n == 0) return request;
  int64_t first = buffers[0].begin, last = buffers[0].end;
  for (size_t i = 0; i < n; ++i) {
    checkBuffer(buffers[i], i);
    first = std::min(first, buffers[i].begin);
    last = std::max(last, buffers[i].end);
    request.size[i] = unitsOf(buffers[i].bytes, alignment);
  }
  const auto range = static_cast<uint64_t>(last) - static_cast<uint64_t>(first);
  if (range <= 8 * n + 1024) {
    request.positions = static_cast<int32_t>(range) + 1;
    for (size_t i = 0; i < n; ++i) {
      request.begin[i] = static_cast<int32_t>(buffers[i].begin - first);
      request.end[i] = static_cast<int32_t>(buffers[i].end - first);
    }
    return request;
  }
  std::vector<int64_t> times;
  times.reserve(2 * n);
  for (const Buffer& buffer : buffers) {
    times.push_back(buffer.begin);
    times.push_back(buffer.end);
  }
  std::sort(times.begin(), times.end());
  times.erase(std::unique(times.begin(), times.end()), times.end());
  const auto rank = [&](int64_t time) {
    return static_cast<int32_t>(std::lower_bound(times.begin(), times.end(), time) - times.begin());
  };
  for (size_t i = 0; i < n; ++i) {
    request.begin[i] = rank(buffers[i].begin);
    request.end[i] = rank(buffers[i].end);
  }
  request.positions = static_cast<int32_t>(times.size());
  return request;
}

int64_t loadOf(const Request& request) {
  std::vector<int64_t> change(static_cast<size_t>(request.positions) + 1, 0);
  for (size_t i = 0; i < request.count(); ++i) {
    change[request.begin[i]] += request.size[i];
    change[request.end[i]] -= request.size[i];
  }
  int64_t live = 0, peak = 0;
  for (int64_t delta : change) peak = std::max(peak, live += delta);
  return peak;
}

bool isGood(const Request& request, const Placement& placed) {
  return static_cast<double>(placed.top) <= kGoodRatio * static_cast<double>(request.load);
}

/// Bytes over LOAD.
int64_t gapOf(const Request& request, const Placement& placed, int64_t alignment) {
  return (placed.top - request.load) * alignment;
}

bool isFair(const Request& request, const Placement& placed, int64_t alignment) {
  return isGood(request, placed) ||
         (static_cast<double>(placed.top) <= kFairRatio * static_cast<double>(request.load) &&
          gapOf(request, placed, alignment) <= kSmallGap);
}

/// Moves the buffer that came to lie too high to the `divisor`-th part of its way in the order, and
/// places again: "squeaky wheel" optimization (Joslin and Clements, 1999). Keeps the best plan in
/// `best`. Returns the comparisons that it took.
int64_t mendOrder(const Request& request, std::vector<int32_t> order, std::ptrdiff_t divisor,
                  int64_t alignment, Placement& best) {
  const int64_t given =
      std::min(kMendingWork, gapOf(request, best, alignment) / kBytesPerComparison);
  int64_t work = given;
  Placement other;
  while (work >= 0 && !isFair(request, best, alignment)) {
    const bool better = placement::placeAtLowestGap(request, order, best.top, &work, other);
    if (better) std::swap(best, other);
    const Placement& last = better ? best : other;
    const auto squeaks = [&](int32_t i) {
      return last.offset[i] >= 0 && last.offset[i] + request.size[i] >= best.top;
    };
    const auto at = std::find_if(order.begin(), order.end(), squeaks);
    if (at == order.end() || at == order.begin()) break;
    std::rotate(order.begin() + (at - order.begin()) / divisor, at, at + 1);
  }
  return given - work;
}

/// Tries one method after the other until the plan is near enough to LOAD; the smallest one wins,
/// the earlier one among equals. Adds to `comparisons`.
Placement place(const Request& request, size_t quadraticLimit, int64_t alignment,
                int64_t& comparisons) {
  const auto good = [&](const Placement& p) { return isGood(request, p); };
  Placement best = placement::fitInTime(request, Direction::Forward);
  if (good(best)) return best;
  Placement other = placement::fitInTime(request, Direction::Backward);
  if (other.top < best.top) std::swap(best, other);
  if (request.count() > quadraticLimit) return best;
  int64_t work = kWork + kWorkPerBuffer * static_cast<int64_t>(request.count());
  for (auto* order : {placement::largestFirst, placement::peakFirst, placement::heaviestFirst}) {
    if (good(best)) return best;
    const int64_t before = work;
    if (placement::placeAtLowestGap(request, order(request), best.top, &work, other)) {
      std::swap(best, other);
    }
    comparisons += before - work;
  }
  if (request.count() > kMendedBuffers) return best;
  for (const std::ptrdiff_t divisor : kMendingDivisors) {
    for (auto* order : {placement::largestFirst, placement::peakFirst, placement::heaviestFirst}) {
      if (isFair(request, best, alignment)) return best;
      comparisons += mendOrder(request, order(request), divisor, alignment, best);
    }
  }
  return best;
}

std::string nameOf(const Buffer& buffer, size_t index) {
  std::string name = "buffer " + std::to_string(index);
  return buffer.label.empty() ? name : name + " (" + buffer.label + ")";
}

std::string rangeText(const Buffer& buffer) {
  return "[" + std::to_string(buffer.offset) + ", " + std::to_string(buffer.offset + buffer.bytes) +
         ")";
}

}  // namespace

double MemoryPlan::ratio() const {
  return load == 0 ? 1.0 : static_cast<double>(bytes) / static_cast<double>(load);
}

int64_t peakLoad(const std::vector<Buffer>& buffers, int64_t alignment) {
  return loadOf(makeRequest(buffers, alignment)) * alignment;
}

MemoryPlan planBuffers(std::vector<Buffer> buffers, int64_t alignment, size_t quadraticLimit) {
  TORCH_CHECK(alignment > 0, "memory plan: alignment ", alignment, " is not positive");
  TORCH_CHECK(buffers.size() < size_t{1} << 27, "memory plan: ", buffers.size(),
              " buffers are too many");
  MemoryPlan plan;
  plan.alignment = alignment;
  Request request = makeRequest(buffers, alignment);
  request.load = loadOf(request);
  const Placement placed = place(request, quadraticLimit, alignment, plan.comparisons);
  for (size_t i = 0; i < buffers.size(); ++i) buffers[i].offset = placed.offset[i] * alignment;
  plan.buffers = std::move(buffers);
  plan.bytes = placed.top * alignment;
  plan.load = request.load * alignment;
  return plan;
}

std::string MemoryPlan::verify() const {
  const size_t n = buffers.size();
  for (size_t i = 0; i < n; ++i) {
    const Buffer& b = buffers[i];
    if (b.begin >= b.end || b.bytes <= 0) return nameOf(b, i) + " has no life or no bytes";
    if (b.offset < 0) return nameOf(b, i) + " is not placed";
    if (b.offset % alignment != 0) {
      return nameOf(b, i) + " at " + rangeText(b) + " is not aligned to " +
             std::to_string(alignment);
    }
    if (b.bytes > bytes || b.offset > bytes - b.bytes) {
      return nameOf(b, i) + " at " + rangeText(b) + " ends outside the arena of " +
             std::to_string(bytes) + " bytes";
    }
  }
  // In the order of time, ends before begins; those alive are disjoint and ordered by offset.
  std::vector<size_t> byBegin(n), byEnd(n);
  for (size_t i = 0; i < n; ++i) byBegin[i] = byEnd[i] = i;
  std::sort(byBegin.begin(), byBegin.end(),
            [&](size_t a, size_t b) { return buffers[a].begin < buffers[b].begin; });
  std::sort(byEnd.begin(), byEnd.end(),
            [&](size_t a, size_t b) { return buffers[a].end < buffers[b].end; });
  std::set<std::pair<int64_t, size_t>> alive;
  size_t ended = 0;
  for (size_t i : byBegin) {
    const Buffer& b = buffers[i];
    for (; ended < n && buffers[byEnd[ended]].end <= b.begin; ++ended) {
      alive.erase({buffers[byEnd[ended]].offset, byEnd[ended]});
    }
    const auto [at, isNew] = alive.insert({b.offset, i});
    TORCH_INTERNAL_ASSERT(isNew);
    const auto clash = [&](size_t j) {
      return nameOf(buffers[j], j) + " at " + rangeText(buffers[j]) + " and " + nameOf(b, i) +
             " at " + rangeText(b) + " overlap, and both live at position " +
             std::to_string(b.begin);
    };
    if (at != alive.begin()) {
      const size_t below = std::prev(at)->second;
      if (buffers[below].offset + buffers[below].bytes > b.offset) return clash(below);
    }
    if (auto above = std::next(at); above != alive.end() && above->first < b.offset + b.bytes) {
      return clash(above->second);
    }
  }
  if (const int64_t peak = peakLoad(buffers, alignment); peak != load) {
    return "the peak of live bytes is " + std::to_string(peak) + ", not " + std::to_string(load);
  }
  return "";
}

void MemoryPlan::print(llvm::raw_ostream& os) const {
  os << "arena " << bytes << " bytes, load " << load << ", ratio " << llvm::format("%.4f", ratio())
     << ", " << counted(buffers.size(), "buffer") << '\n';
  for (const Buffer& buffer : buffers) {
    os << "  [" << buffer.offset << ", " << buffer.offset + buffer.bytes << ") positions ["
       << buffer.begin << ", " << buffer.end << ')';
    if (!buffer.label.empty()) os << ' ' << buffer.label;
    os << '\n';
  }
}

}  // namespace gravure
