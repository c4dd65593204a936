#include "runtime/layout/low_placement.h"

#include "ir/memory/memory_placement.h"

#include <algorithm>
#include <array>

namespace gravure {
namespace {

using placement::Placement;
using placement::Request;

constexpr double kGrowth = 1.005;
constexpr int64_t kWorth =
    20;  // a byte more in the arena is worth so many that what is held ends lower
constexpr int64_t kWork = 1'000'000;
constexpr int64_t kWorkPerBuffer = 50;

Request requestOf(const MemoryPlan& plan) {
  Request request;
  for (const Buffer& buffer : plan.buffers) {
    request.begin.push_back(static_cast<int32_t>(buffer.begin));
    request.end.push_back(static_cast<int32_t>(buffer.end));
    request.size.push_back((buffer.bytes + plan.alignment - 1) / plan.alignment);
    request.positions = std::max(request.positions, static_cast<int32_t>(buffer.end) + 1);
  }
  request.load = plan.load / plan.alignment;
  return request;
}

}  // namespace

void placeLow(MemoryPlan& plan, const std::vector<bool>& saved, const std::vector<bool>& results) {
  const auto any = [](const std::vector<bool>& of) {
    return std::find(of.begin(), of.end(), true) != of.end();
  };
  if (!any(saved) && !any(results)) return;
  const Request request = requestOf(plan);
  const auto isSaved = [&](int32_t i) { return saved[i]; };
  const auto isResult = [&](int32_t i) { return results[i]; };
  const auto costOf = [&](const Placement& placed) {
    int64_t savedEnd = 0, end = 0;
    for (size_t i = 0; i < request.count(); ++i) {
      const int64_t top = placed.offset[i] + request.size[i];
      if (saved[i]) savedEnd = std::max(savedEnd, top);
      if (saved[i] || results[i]) end = std::max(end, top);
    }
    return savedEnd + end + kWorth * placed.top;
  };
  Placement best;
  for (const Buffer& buffer : plan.buffers) best.offset.push_back(buffer.offset / plan.alignment);
  best.top = plan.bytes / plan.alignment;
  int64_t cost = costOf(best);
  const auto limit = static_cast<int64_t>(kGrowth * static_cast<double>(best.top)) + 1;
  const auto tryOrder = [&](std::vector<int32_t> order, bool latestFirst, bool resultsToo) {
    const auto inTime = [&](int32_t a, int32_t b) {
      return latestFirst ? request.begin[a] > request.begin[b]
                         : request.begin[a] < request.begin[b];
    };
    const auto behind = std::stable_partition(order.begin(), order.end(), isSaved);
    std::stable_sort(order.begin(), behind, inTime);
    if (resultsToo)
      std::stable_sort(behind, std::stable_partition(behind, order.end(), isResult), inTime);
    int64_t work = kWork + kWorkPerBuffer * static_cast<int64_t>(request.count());
    Placement placed;
    if (!placement::placeAtLowestGap(request, order, limit, &work, placed)) return;
    if (const int64_t lower = costOf(placed); lower < cost) {
      cost = lower;
      best = std::move(placed);
    }
  };
  const std::array orders{placement::peakFirst(request), placement::heaviestFirst(request),
                          placement::largestFirst(request)};
  for (const bool resultsToo : {true, false}) {
    for (const bool latestFirst : {false, true}) {
      for (const auto& order : orders) tryOrder(order, latestFirst, resultsToo);
    }
  }
  for (size_t i = 0; i < plan.buffers.size(); ++i) {
    plan.buffers[i].offset = best.offset[i] * plan.alignment;
  }
  plan.bytes = best.top * plan.alignment;
}

}  // namespace gravure
