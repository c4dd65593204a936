#pragma once
// Counts in messages.

#include <llvm/ADT/StringRef.h>

#include <cstdint>
#include <string>

namespace gravure {

/// "1 node", "2 nodes".
inline std::string counted(int64_t n, llvm::StringRef noun) {
  return std::to_string(n) + " " + noun.str() + (n == 1 ? "" : "s");
}

}  // namespace gravure
