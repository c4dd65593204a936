#pragma once
// One order of an entry's nodes cut into sections.

#include "passes/analysis/partition_levels.h"

#include <cstdint>
#include <vector>

namespace gravure {

/// An order of all nodes and where its sections end.
struct SectionOrder {
  std::vector<int32_t> nodes;  // in this order
  std::vector<int32_t> ends;   // one past each section's last position
  std::vector<bool> captured;  // by section

  int32_t sections() const { return static_cast<int32_t>(ends.size()); }
  int32_t capturedSections() const;
  int32_t beginOf(int32_t section) const { return section == 0 ? 0 : ends[section - 1]; }
};

/// The sections of an order by level.
SectionOrder sectionsByLevel(const Colouring& colouring, const Levels& levels);

/// Maximal sections in program order. Number nodes join the host section before, or, where they depend on the
/// section that is open, the one after; they end a captured section only if a node of it would depend on them.
/// `isNumberNode`: by node.
SectionOrder sectionsInProgramOrder(const Colouring& colouring,
                                    const std::vector<bool>& isNumberNode);

}  // namespace gravure
