#include "passes/analysis/partition_runs.h"

#include <algorithm>

namespace gravure {

int32_t RunOrder::capturedRuns() const {
  return static_cast<int32_t>(std::count(captured.begin(), captured.end(), true));
}

RunOrder runsByLevel(const Colouring& colouring, const Levels& levels) {
  RunOrder order;
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

RunOrder runsInProgramOrder(const Colouring& colouring, const std::vector<bool>& isNumberNode) {
  const Dependences& dependences = *colouring.dependences;
  // Host runs have even numbers, captured runs odd ones; the first run may stay empty.
  std::vector<int32_t> runOf(dependences.size());
  int32_t open = 0;
  for (int32_t i = 0; i < dependences.size(); ++i) {
    int32_t earliest = 0;
    for (int32_t p : dependences.before(i)) earliest = std::max(earliest, runOf[p]);
    const bool openCaptured = open % 2 == 1;
    if (isNumberNode[i]) {
      // Before the open captured run, or after it, in a host run that is not begun yet.
      const int32_t hostRun = openCaptured ? open - 1 : open;
      runOf[i] = earliest <= hostRun ? hostRun : open + 1;
      continue;
    }
    if (colouring.captured[i]) {
      if (!openCaptured) ++open;
      while (earliest > open) open += 2;
    } else if (openCaptured) {
      ++open;
    }
    runOf[i] = open;
  }
  Levels levels{std::move(runOf), 0, false};
  for (int32_t run : levels.of) levels.count = std::max(levels.count, run + 1);
  return runsByLevel(colouring, levels);
}

}  // namespace gravure
