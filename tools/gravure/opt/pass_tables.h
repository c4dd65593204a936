#pragma once
// What passes are, what they did and how long they took: --list-passes, --stats and --time-passes.

#include "passes/pass.h"

#include <vector>

namespace llvm {
class raw_ostream;
}

namespace gravure::tool {

/// All passes in the order of the pipeline: what each does, which facts of the program it needs, makes
/// and keeps, and its options with what they take and what they are without being given.
void printPasses(llvm::raw_ostream& os);
/// Rewrites that were asked for, and how often each remark was made.
void printPassStats(const std::vector<PassRecord>& records, const Remarks& remarks,
                    llvm::raw_ostream& os);
/// Milliseconds of the pass itself and of its verification, and the pass's share of all passes.
void printPassTimes(const std::vector<PassRecord>& records, llvm::raw_ostream& os);

}  // namespace gravure::tool
