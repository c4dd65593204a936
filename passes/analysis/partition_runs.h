#pragma once
// One order of an entry's nodes cut into runs.

#include "passes/analysis/partition_levels.h"

#include <cstdint>
#include <vector>

namespace gravure {

/// An order of all nodes and where its runs end.
struct RunOrder {
  std::vector<int32_t> nodes;  // by place: the node
  std::vector<int32_t> ends;   // one past each run's last place
  std::vector<bool> captured;  // by run

  int32_t runs() const { return static_cast<int32_t>(ends.size()); }
  int32_t capturedRuns() const;
  int32_t beginOf(int32_t run) const { return run == 0 ? 0 : ends[run - 1]; }
};

/// The runs of an order by level.
RunOrder runsByLevel(const Colouring& colouring, const Levels& levels);

/// Maximal runs in program order. Nodes on numbers alone (`isFree`) join the host run before, or, where
/// they depend on the run that is open, the one after; they end a captured run only if a node of it
/// would depend on them.
RunOrder runsInProgramOrder(const Colouring& colouring, const std::vector<bool>& isFree);

/// True if the operator only makes views: every result shares an operand's storage, nothing is written,
/// and nothing is waited for.
bool isView(const OpFacts& facts);

}  // namespace gravure
