#include "passes/analysis/partition_sections.h"

#include <algorithm>

namespace gravure {

int32_t SectionOrder::capturedSections() const {
  return static_cast<int32_t>(std::count(captured.begin(), captured.end(), true));
}

SectionOrder sectionsByLevel(const Colouring& colouring, const Levels& levels) {
  SectionOrder order;
  order.nodes = orderByLevel(levels);
  for (size_t position = 0; position < order.nodes.size(); ++position) {
    const bool captured = colouring.captured[order.nodes[position]];
    if (order.captured.empty() || order.captured.back() != captured) {
      order.captured.push_back(captured);
      order.ends.push_back(0);
    }
    order.ends.back() = static_cast<int32_t>(position) + 1;
  }
  return order;
}

SectionOrder sectionsInProgramOrder(const Colouring& colouring,
                                    const std::vector<bool>& isNumberNode) {
  const Dependences& dependences = *colouring.dependences;
  // Host sections have even numbers, captured sections odd ones; the first section may stay empty.
  std::vector<int32_t> sectionOf(dependences.size());
  int32_t open = 0;
  for (int32_t i = 0; i < dependences.size(); ++i) {
    int32_t earliest = 0;
    for (int32_t p : dependences.before(i)) earliest = std::max(earliest, sectionOf[p]);
    const bool openCaptured = open % 2 == 1;
    if (isNumberNode[i]) {
      // Before the open captured section, or after it, in a host section that is not begun yet.
      const int32_t hostSection = openCaptured ? open - 1 : open;
      sectionOf[i] = earliest <= hostSection ? hostSection : open + 1;
      continue;
    }
    if (colouring.captured[i]) {
      if (!openCaptured) ++open;
      while (earliest > open) open += 2;
    } else if (openCaptured) {
      ++open;
    }
    sectionOf[i] = open;
  }
  Levels levels{std::move(sectionOf), 0, false};
  for (int32_t section : levels.of) levels.count = std::max(levels.count, section + 1);
  return sectionsByLevel(colouring, levels);
}

}  // namespace gravure
