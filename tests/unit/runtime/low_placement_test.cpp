// What may be held between two steps lies at the bottom of an arena.
#include "runtime/layout/low_placement.h"

#include <catch2/catch.hpp>

#include <algorithm>

using namespace gravure;

namespace {

/// A forward at [0, 4) that saves, and a backward at [4, 9) that returns gradients.
struct Arena {
  MemoryPlan plan;
  std::vector<bool> saved, results;

  void add(int64_t begin, int64_t end, int64_t bytes) {
    Buffer buffer;
    buffer.begin = begin;
    buffer.end = end;
    buffer.bytes = bytes;
    plan.buffers.push_back(buffer);
    saved.push_back(begin < 4 && end > 4);
    results.push_back(end == 9);
  }
  int64_t endOf(const std::vector<bool>& which) const {
    int64_t end = 0;
    for (size_t i = 0; i < which.size(); ++i) {
      if (which[i]) end = std::max(end, plan.buffers[i].offset + plan.buffers[i].bytes);
    }
    return end;
  }
};

}  // namespace

TEST_CASE("saved values lie at the bottom, where results fill the arena to the top, too",
          "[memory]") {
  constexpr int64_t k = 1024;
  Arena arena;
  arena.add(0, 2, 8 * k);  // a temporary, below what is saved as the forward goes
  arena.add(1, 8, 4 * k);
  arena.add(2, 7, 4 * k);
  arena.add(3, 6, 4 * k);
  arena.add(5, 9, 4 * k);  // gradients, which come as saved values go
  arena.add(6, 9, 4 * k);
  arena.add(7, 9, 4 * k);
  arena.plan = planBuffers(arena.plan.buffers, 64);
  const int64_t bytes = arena.plan.bytes;
  REQUIRE(bytes == 16 * k);
  // As good a plan, with the first saved one at the top.
  const int64_t offsets[] = {0, 12, 0, 4, 8, 4, 0};
  for (size_t i = 0; i < arena.plan.buffers.size(); ++i)
    arena.plan.buffers[i].offset = offsets[i] * k;
  REQUIRE(arena.plan.verify() == "");
  placeLow(arena.plan, arena.saved, arena.results);
  CHECK(arena.plan.verify() == "");
  CHECK(arena.plan.bytes == bytes);  // it is full, whatever lies where
  CHECK(arena.endOf(arena.saved) == 12 * k);
}

TEST_CASE("where what is saved cannot lie lower in an arena of that size, nothing moves",
          "[memory]") {
  constexpr int64_t k = 1024;
  Arena arena;
  arena.add(0, 3, 8 * k);
  arena.add(1, 8, 8 * k);
  arena.plan = planBuffers(arena.plan.buffers, 64);
  arena.plan.buffers[1].offset = 0;
  arena.plan.buffers[0].offset = 8 * k;
  const auto before = arena.plan.buffers;
  placeLow(arena.plan, arena.saved, arena.results);
  CHECK(arena.plan.verify() == "");
  CHECK(arena.plan.buffers[0].offset == before[0].offset);
  CHECK(arena.plan.buffers[1].offset == before[1].offset);
}
