#pragma once
// One order of an entry's nodes cut into runs.

#include "passes/analysis/partition_levels.h"

#include <cstdint>
#include <vector>

namespace gravure {

/// An order of all nodes and where its runs end.
struct RunOrder {
  std::vector<int32_t> nodes;  // in this order
  std::vector<int32_t> ends;   // one past each run's last position
  std::vector<bool> captured;  // by run

  int32_t runs() const { return static_cast<int32_t>(ends.size()); }
  int32_t capturedRuns() const;
  int32_t beginOf(int32_t run) const { return run == 0 ? 0 : ends[run - 1]; }
};

/// The runs of an order by level.
RunOrder runsByLevel(const Colouring& colouring, const Levels& levels);

/// Maximal runs in program order. Number nodes join the host run before, or, where they depend on the
/// run that is open, the one after; they end a captured run only if a node of it would depend on them.
/// `isNumberNode`: by node.
RunOrder runsInProgramOrder(const Colouring& colouring, const std::vector<bool>& isNumberNode);

}  // namespace gravure
