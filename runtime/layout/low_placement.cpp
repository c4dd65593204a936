#include "runtime/layout/low_placement.h"

#include "ir/memory/memory_placement.h"

#include <algorithm>

namespace gravure {
namespace {

using placement::Placement;
using placement::Request;

constexpr double kGrowth = 1.001;
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

void placeLow(MemoryPlan& plan, const std::vector<bool>& low) {
  if (std::find(low.begin(), low.end(), true) == low.end()) return;
  const Request request = requestOf(plan);
  const auto isLow = [&](int32_t i) { return low[i]; };
  const auto endOf = [&](const std::vector<int64_t>& offsets) {
    int64_t end = 0;
    for (size_t i = 0; i < offsets.size(); ++i) {
      if (low[i]) end = std::max(end, offsets[i] + request.size[i]);
    }
    return end;
  };
  Placement best;
  for (const Buffer& buffer : plan.buffers) best.offset.push_back(buffer.offset / plan.alignment);
  best.top = plan.bytes / plan.alignment;
  int64_t end = endOf(best.offset);
  const auto limit = static_cast<int64_t>(kGrowth * static_cast<double>(best.top)) + 1;
  for (const bool latestFirst : {false, true}) {
    for (auto* others : {placement::peakFirst, placement::heaviestFirst, placement::largestFirst}) {
      int64_t work = kWork + kWorkPerBuffer * static_cast<int64_t>(request.count());
      std::vector<int32_t> order = others(request);
      const auto middle = std::stable_partition(order.begin(), order.end(), isLow);
      std::stable_sort(order.begin(), middle, [&](int32_t a, int32_t b) {
        return latestFirst ? request.begin[a] > request.begin[b]
                           : request.begin[a] < request.begin[b];
      });
      Placement placed;
      if (!placement::placeAtLowestGap(request, order, limit, &work, placed)) continue;
      if (const int64_t top = endOf(placed.offset); top < end) {
        end = top;
        best = std::move(placed);
      }
    }
  }
  for (size_t i = 0; i < plan.buffers.size(); ++i) {
    plan.buffers[i].offset = best.offset[i] * plan.alignment;
  }
  plan.bytes = best.top * plan.alignment;
}

}  // namespace gravure
