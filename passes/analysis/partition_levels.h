#pragma once
// Orders of a two-coloured dependence graph with few alternations.
//
// Terms. Colour: captured, or host (nodes with a host reason, and number nodes). Fate:
//   captured nodes of one fate must share a section. Section: neighbours of one colour in an order.
// Level of a node: the most colour changes on any chain of dependences that ends at it, plus one if
//   its chain starts with the colour that level 0 does not have. Nodes of one level have one colour
//   and no colour change between them, so each level can be one section; and a chain with k changes needs
//   k + 1 sections in every order. So no order has fewer sections than there are levels, for the better of
//   the two start colours; and starting with the host no order has fewer captured sections.
// Fates only ever raise levels; the same argument holds for chains that go through a fate.

#include "passes/analysis/dependences.h"

#include <cstdint>
#include <optional>
#include <vector>

namespace gravure {

struct Colouring {
  const Dependences* dependences = nullptr;
  std::vector<bool> captured;  // by node
  std::vector<int32_t> fate;   // by node: dense, -1 for none; counts for captured nodes alone
  int32_t fates = 0;

  /// Fate that binds node `i`, -1 if it is free.
  int32_t bindingFate(int32_t i) const { return captured[i] ? fate[i] : -1; }
};

/// A level for each node; levels of even number have the colour of level 0.
struct Levels {
  std::vector<int32_t> of;
  int32_t count = 0;  // one past the highest level
  bool firstCaptured = false;

  bool isCaptured(int32_t level) const { return (level % 2 == 0) == firstCaptured; }
  /// Sections and captured sections, without levels that hold no node.
  int32_t sections() const;
  int32_t capturedSections() const;
};

/// The lowest levels, for one start colour. nullopt if some fate cannot be kept together, because a
/// host node depends on a part of it and another part on that host node. Linear a round; rounds are
/// one more than fates that push each other, at most `kFateRounds`.
std::optional<Levels> earliestLevels(const Colouring& colouring, bool firstCaptured);
inline constexpr int kFateRounds = 64;

/// The better of both start colours: fewest captured sections, then fewest sections, then starting captured.
std::optional<Levels> fewestLevels(const Colouring& colouring);

/// The same number of levels with each node as late as it can be.
Levels latestLevels(const Colouring& colouring, const Levels& earliest);

/// The same number of levels with each node where the program has it, as far as that goes: in the
/// level that the program has reached at that node, or the latest one that it may be in. Keeps
/// values about as short-lived as the program does.
Levels nearProgramLevels(const Colouring& colouring, const Levels& earliest, const Levels& latest);

/// Levels of `parts` equal parts of the program, one part after the other: more sections than levels of
/// the whole, and values that do not outlive the program's by more than a part. No part ends inside a
/// fate. nullopt as for earliestLevels.
std::optional<Levels> levelsByParts(const Colouring& colouring, int32_t parts);

/// Nodes by level, those of one level in program order.
std::vector<int32_t> orderByLevel(const Levels& levels);

/// Fates that a host node pulls apart: a host node depends on a member, and another member on that
/// host node. If there is none, one of those that pull each other apart over host nodes, if any.
/// Linear, plus for each fate that spans several levels the nodes from its first member to its last.
std::vector<int32_t> fatesPulledApart(const Colouring& colouring);

}  // namespace gravure
