#pragma once
// The placing methods behind planBuffers (ir/memory/memory_plan.h). All of them are deterministic.

#include <cstddef>
#include <cstdint>
#include <vector>

namespace gravure::placement {

/// Buffers to place, by index. They live over positions, which are dense, in [0, positions). Sizes and
/// offsets count alignment units.
struct Request {
  std::vector<int32_t> begin, end;
  std::vector<int64_t> size;
  int32_t positions = 0;
  int64_t load = 0;  // largest sum of sizes alive at one position

  size_t count() const { return size.size(); }
};

struct Placement {
  std::vector<int64_t> offset;
  int64_t top = 0;  // largest offset + size
};

enum class Direction : uint8_t { Forward, Backward };

/// In the order of time, each buffer into the smallest free block that fits well, or on top.
/// Linear in buffers plus positions. Perfect on stacks, and on chains of equal sizes.
Placement fitInTime(const Request& request, Direction direction);

/// In the order of `order`, each buffer at the lowest gap between those that live with it. Gives up
/// (false) when it cannot get below `limit`, or when `*work`, which counts comparisons, is used up.
bool placeAtLowestGap(const Request& request, const std::vector<int32_t>& order, int64_t limit,
                      int64_t* work, Placement& out);

/// Orders for placeAtLowestGap. Ties by index.
std::vector<int32_t> largestFirst(const Request& request);
/// Those alive at the position of the largest load first, longest first; then the others, largest first.
std::vector<int32_t> peakFirst(const Request& request);
/// Largest size times duration first.
std::vector<int32_t> heaviestFirst(const Request& request);

}  // namespace gravure::placement
