#include "passes/analysis/partition_levels.h"

#include <algorithm>

namespace gravure {
namespace {

/// The lowest level of this node's colour.
int32_t lowest(const Colouring& colouring, int32_t i, bool firstCaptured) {
  return colouring.captured[i] == firstCaptured ? 0 : 1;
}

int32_t changes(const Colouring& colouring, int32_t a, int32_t b) {
  return colouring.captured[a] != colouring.captured[b] ? 1 : 0;
}

/// Raises the levels from `level` on until each node stands no lower than what it depends on (one
/// higher where the colour changes) and fates are level. nullopt when none rises any more; else a fate
/// that still rose in the last round. Looks at the nodes from `begin` to `end` alone.
std::optional<int32_t> raiseLevels(const Colouring& colouring, std::vector<int32_t>& level,
                                   int32_t begin, int32_t end) {
  const Dependences& dependences = *colouring.dependences;
  std::vector<int32_t> fateLevel(colouring.fates, 0);
  std::optional<int32_t> raised;
  for (int round = 0; round < kFateRounds; ++round) {
    raised.reset();
    for (int32_t i = begin; i < end; ++i) {
      int32_t at = level[i];
      for (int32_t p : dependences.before(i)) {
        if (p >= begin) at = std::max(at, level[p] + changes(colouring, p, i));
      }
      if (const int32_t fate = colouring.bindingFate(i); fate >= 0) {
        at = std::max(at, fateLevel[fate]);
        // Members seen before this one stand lower now; the next round lifts them.
        if (at > fateLevel[fate] && !raised) raised = fate;
        fateLevel[fate] = at;
      }
      level[i] = at;
    }
    if (!raised) return std::nullopt;
  }
  return raised;
}

std::optional<int32_t> raiseLevels(const Colouring& colouring, std::vector<int32_t>& level) {
  return raiseLevels(colouring, level, 0, static_cast<int32_t>(level.size()));
}

void recount(Levels& levels) {
  levels.count = 0;
  for (int32_t level : levels.of) levels.count = std::max(levels.count, level + 1);
}

std::vector<bool> occupied(const Levels& levels) {
  std::vector<bool> holds(levels.count);
  for (int32_t level : levels.of) holds[level] = true;
  return holds;
}

}  // namespace

int32_t Levels::sections() const {
  const auto holds = occupied(*this);
  return static_cast<int32_t>(std::count(holds.begin(), holds.end(), true));
}

int32_t Levels::capturedSections() const {
  const auto holds = occupied(*this);
  int32_t captured = 0;
  for (int32_t level = 0; level < count; ++level) captured += holds[level] && isCaptured(level);
  return captured;
}

std::optional<Levels> earliestLevels(const Colouring& colouring, bool firstCaptured) {
  Levels levels;
  levels.firstCaptured = firstCaptured;
  levels.of.resize(colouring.dependences->size());
  for (size_t i = 0; i < levels.of.size(); ++i) {
    levels.of[i] = lowest(colouring, static_cast<int32_t>(i), firstCaptured);
  }
  if (raiseLevels(colouring, levels.of)) return std::nullopt;
  recount(levels);
  return levels;
}

std::optional<Levels> fewestLevels(const Colouring& colouring) {
  auto captured = earliestLevels(colouring, true);
  auto host = earliestLevels(colouring, false);
  if (!captured || !host) return std::nullopt;
  const auto cost = [](const Levels& levels) {
    return std::pair(levels.capturedSections(), levels.sections());
  };
  return cost(*host) < cost(*captured) ? host : captured;
}

Levels latestLevels(const Colouring& colouring, const Levels& earliest) {
  const Dependences& dependences = *colouring.dependences;
  Levels latest = earliest;
  const int32_t last = earliest.count - 1;
  for (int32_t i = 0; i < dependences.size(); ++i) {
    latest.of[i] = earliest.isCaptured(last) == colouring.captured[i] ? last : last - 1;
  }
  std::vector<int32_t> fateLevel(colouring.fates, last);
  for (bool lowered = true; lowered;) {
    lowered = false;
    for (int32_t i = dependences.size() - 1; i >= 0; --i) {
      if (const int32_t fate = colouring.bindingFate(i); fate >= 0) {
        latest.of[i] = std::min(latest.of[i], fateLevel[fate]);
        lowered |= latest.of[i] < fateLevel[fate];
        fateLevel[fate] = latest.of[i];
      }
      for (int32_t p : dependences.before(i)) {
        latest.of[p] = std::min(latest.of[p], latest.of[i] - changes(colouring, p, i));
      }
    }
  }
  return latest;
}

Levels nearProgramLevels(const Colouring& colouring, const Levels& earliest, const Levels& latest) {
  Levels near = earliest;
  int32_t reached = 0;
  for (size_t i = 0; i < near.of.size(); ++i) {
    reached = std::max(reached, earliest.of[i]);
    // The nearest level of the node's colour that the program has reached.
    const int32_t own = (reached - earliest.of[i]) % 2 == 0 ? reached : reached - 1;
    near.of[i] = std::clamp(own, earliest.of[i], latest.of[i]);
  }
  if (raiseLevels(colouring, near.of)) return earliest;  // too many rounds
  recount(near);
  return near;
}

std::vector<int32_t> orderByLevel(const Levels& levels) {
  std::vector<int32_t> next(levels.count + 1, 0);
  for (int32_t level : levels.of) ++next[level + 1];
  for (int32_t level = 0; level < levels.count; ++level) next[level + 1] += next[level];
  std::vector<int32_t> order(levels.of.size());
  for (size_t i = 0; i < levels.of.size(); ++i) {
    order[next[levels.of[i]]++] = static_cast<int32_t>(i);
  }
  return order;
}

namespace {

struct FateExtent {
  int32_t first = -1, last = -1;             // members, in program order
  int32_t lowest = INT32_MAX, highest = -1;  // their levels without fates
};

std::vector<FateExtent> extentsOf(const Colouring& colouring, const Levels& free) {
  std::vector<FateExtent> result(colouring.fates);
  for (int32_t i = 0; i < colouring.dependences->size(); ++i) {
    const int32_t fate = colouring.bindingFate(i);
    if (fate < 0) continue;
    FateExtent& extent = result[fate];
    if (extent.first < 0) extent.first = i;
    extent.last = i;
    extent.lowest = std::min(extent.lowest, free.of[i]);
    extent.highest = std::max(extent.highest, free.of[i]);
  }
  return result;
}

enum class Reach : uint8_t { None, FromMember, ThroughHost };

/// True if some chain of dependences leads from a member over a host node to a member.
bool isPulledApart(const Colouring& colouring, int32_t fate, const FateExtent& extent) {
  std::vector<Reach> reach(extent.last - extent.first + 1, Reach::None);
  for (int32_t i = extent.first; i <= extent.last; ++i) {
    Reach at = Reach::None;
    for (int32_t p : colouring.dependences->before(i)) {
      if (p >= extent.first) at = std::max(at, reach[p - extent.first]);
    }
    const bool member = colouring.bindingFate(i) == fate;
    if (member && at == Reach::ThroughHost) return true;
    if (member) at = std::max(at, Reach::FromMember);
    if (at != Reach::None && !colouring.captured[i]) at = Reach::ThroughHost;
    reach[i - extent.first] = at;
  }
  return false;
}

}  // namespace

std::vector<int32_t> fatesPulledApart(const Colouring& colouring) {
  if (colouring.fates == 0) return {};
  Colouring free = colouring;
  free.fate.assign(free.fate.size(), -1);
  const auto levels = earliestLevels(free, true);
  const auto all = extentsOf(colouring, *levels);
  std::vector<int32_t> apart;
  for (int32_t fate = 0; fate < colouring.fates; ++fate) {
    // A chain over a host node changes colour twice.
    const bool mayBe = all[fate].highest - all[fate].lowest >= 2;
    if (mayBe && isPulledApart(colouring, fate, all[fate])) apart.push_back(fate);
  }
  if (!apart.empty()) return apart;
  // Fates that are whole each on its own may still push each other round in a circle over the host.
  std::vector<int32_t> together(colouring.fate.size(), 0);
  if (const auto rising = raiseLevels(colouring, together)) apart.push_back(*rising);
  return apart;
}

namespace {

/// Ends of about `parts` parts of the program, none inside a fate.
std::vector<int32_t> partEnds(const Colouring& colouring, int32_t parts) {
  const int32_t size = colouring.dependences->size();
  std::vector<int32_t> lastOfFate(colouring.fates, -1);
  for (int32_t i = 0; i < size; ++i) {
    if (const int32_t fate = colouring.bindingFate(i); fate >= 0) lastOfFate[fate] = i;
  }
  std::vector<int32_t> ends;
  int32_t open = -1;  // last member of the fates begun so far
  for (int32_t i = 0; i < size; ++i) {
    if (const int32_t fate = colouring.bindingFate(i); fate >= 0)
      open = std::max(open, lastOfFate[fate]);
    const int64_t wished = int64_t{size} * (static_cast<int64_t>(ends.size()) + 1) / parts;
    if (i + 1 == size || (i + 1 >= wished && i >= open)) ends.push_back(i + 1);
  }
  return ends;
}

}  // namespace

std::optional<Levels> levelsByParts(const Colouring& colouring, int32_t parts) {
  std::optional<Levels> best;
  for (bool firstCaptured : {true, false}) {
    Levels levels;
    levels.firstCaptured = firstCaptured;
    levels.of.resize(colouring.dependences->size());
    int32_t begin = 0;
    for (int32_t end : partEnds(colouring, parts)) {
      // A part goes on in the last level, so that the section there may grow.
      const int32_t base = std::max(levels.count - 1, 0);
      const bool baseCaptured = levels.isCaptured(base);
      for (int32_t i = begin; i < end; ++i) {
        levels.of[i] = base + lowest(colouring, i, baseCaptured);
      }
      if (raiseLevels(colouring, levels.of, begin, end)) return std::nullopt;
      for (int32_t i = begin; i < end; ++i) levels.count = std::max(levels.count, levels.of[i] + 1);
      begin = end;
    }
    const bool better = !best || std::pair(levels.capturedSections(), levels.sections()) <
                                     std::pair(best->capturedSections(), best->sections());
    if (better) best = std::move(levels);
  }
  return best;
}

}  // namespace gravure
