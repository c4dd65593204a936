#include "passes/analysis/partition_runs.h"

#include <algorithm>

namespace gravure {

int32_t RunOrder::capturedRuns() const {
  return static_cast<int32_t>(std::count(captured.begin(), captured.end(), true));
}

RunOrder runsByLevel(const Colouring& colouring, const Levels& levels) {
  RunOrder order;
  order.nodes = orderByLevel(levels);
  for (size_t place = 0; place < order.nodes.size(); ++place) {
    const bool captured = colouring.captured[order.nodes[place]];
    if (order.captured.empty() || order.captured.back() != captured) {
      order.captured.push_back(captured);
      order.ends.push_back(0);
    }
    order.ends.back() = static_cast<int32_t>(place) + 1;
  }
  return order;
}

RunOrder runsInProgramOrder(const Colouring& colouring, const std::vector<bool>& isFree) {
  const Dependences& dependences = *colouring.dependences;
  // Host runs have even numbers, captured runs odd ones; the first run may stay empty.
  std::vector<int32_t> runOf(dependences.size());
  int32_t open = 0;
  for (int32_t i = 0; i < dependences.size(); ++i) {
    int32_t earliest = 0;
    for (int32_t p : dependences.before(i)) earliest = std::max(earliest, runOf[p]);
    const bool openCaptured = open % 2 == 1;
    if (isFree[i]) {
      // Before the open captured run, or after it, in a host run that is not begun yet.
      const int32_t place = openCaptured ? open - 1 : open;
      runOf[i] = earliest <= place ? place : open + 1;
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

LiveBytes::LiveBytes(const Entry& entry, const Dependences& dependences) {
  const Numbering& numbering = dependences.numbering();
  std::vector<int32_t> sized(numbering.valueBound(), -1);
  for (int32_t i = 0; i < numbering.size(); ++i) {
    for (int32_t result : numbering.results(i)) {
      if (numbering.storageOf(result) != result) continue;
      const auto bytes = storageBytes(*numbering.value(result)->type());
      if (!bytes || *bytes == 0) continue;
      sized[result] = static_cast<int32_t>(bytes_.size());
      bytes_.push_back(*bytes);
    }
  }
  const auto touchStorage = [&](int32_t storage) {
    if (storage >= 0 && sized[storage] >= 0) touched_.push_back(sized[storage]);
  };
  const auto touch = [&](int32_t value) { touchStorage(numbering.storageOf(value)); };
  begin_.reserve(numbering.size() + 1);
  for (int32_t i = 0; i < numbering.size(); ++i) {
    begin_.push_back(static_cast<int32_t>(touched_.size()));
    for (int32_t value : numbering.used(i)) touch(value);
    for (int32_t result : numbering.results(i)) touch(result);
    dependences.accesses().forEachReadByWait(i, touchStorage);
  }
  begin_.push_back(static_cast<int32_t>(touched_.size()));
  returned_.resize(bytes_.size());
  for (const Value* result : entry.graph->outputs()) {
    const int32_t storage = numbering.storageOf(result);
    if (storage >= 0 && sized[storage] >= 0) returned_[sized[storage]] = true;
  }
}

int64_t LiveBytes::peak(const std::vector<int32_t>& order) const {
  const int32_t places = static_cast<int32_t>(order.size());
  std::vector<int32_t> first(bytes_.size(), -1), last(bytes_.size(), -1);
  for (int32_t place = 0; place < places; ++place) {
    for (int32_t at = begin_[order[place]]; at < begin_[order[place] + 1]; ++at) {
      const int32_t storage = touched_[at];
      if (first[storage] < 0) first[storage] = place;
      last[storage] = returned_[storage] ? places - 1 : place;
    }
  }
  std::vector<int64_t> change(places + 1, 0);
  for (size_t storage = 0; storage < bytes_.size(); ++storage) {
    if (first[storage] < 0) continue;
    change[first[storage]] += bytes_[storage];
    change[last[storage] + 1] -= bytes_[storage];
  }
  int64_t live = 0, most = 0;
  for (int64_t delta : change) most = std::max(most, live += delta);
  return most;
}

bool isView(const OpFacts& facts) {
  if (facts.writes || facts.wait || facts.aliasedArgs.empty()) return false;
  return std::all_of(facts.aliasedArgs.begin(), facts.aliasedArgs.end(),
                     [](const ParameterSet& sources) { return sources.any(); });
}

}  // namespace gravure
