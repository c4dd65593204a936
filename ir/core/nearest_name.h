#pragma once
// For messages about an unknown name: the known one that was most likely meant.

#include <llvm/ADT/ArrayRef.h>
#include <llvm/ADT/StringRef.h>

#include <algorithm>
#include <string>

namespace gravure {

/// The member of `known` that is nearest to `word` in letters; "" if none is near.
inline std::string nearestName(llvm::StringRef word, llvm::ArrayRef<std::string> known) {
  std::string best;
  unsigned bestDistance = std::max<unsigned>(2, word.size() / 3) + 1;
  for (const std::string& candidate : known) {
    const unsigned distance = word.edit_distance(candidate, true, bestDistance);
    if (distance < bestDistance) {
      best = candidate;
      bestDistance = distance;
    }
  }
  return best;
}

/// "; did you mean 'X'?" with that member; "" if none is near.
inline std::string didYouMean(llvm::StringRef word, llvm::ArrayRef<std::string> known) {
  const std::string near = nearestName(word, known);
  return near.empty() ? "" : "; did you mean '" + near + "'?";
}

}  // namespace gravure
