#pragma once
// What passes did and how long they took, one row a pass: --stats and --time-passes.

#include "passes/pass.h"

#include <vector>

namespace llvm {
class raw_ostream;
}

namespace gravure::tool {

/// Rewrites that were asked for, and how often each remark was made.
void printPassStats(const std::vector<PassRecord>& records, const Remarks& remarks,
                    llvm::raw_ostream& os);
/// Milliseconds of the pass itself and of its verification, and the pass's share of all passes.
void printPassTimes(const std::vector<PassRecord>& records, llvm::raw_ostream& os);

}  // namespace gravure::tool
