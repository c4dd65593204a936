#pragma once
// The flags that say how passes run, shared by the subcommands that run them.

#include "passes/pass.h"
#include "tools/gravure/command/command.h"

namespace gravure::tool {

class PassFlags {
 public:
  explicit PassFlags(Command& command);
  /// UsageError if a value is out of range.
  PassOptions options() const;
  bool alignmentGiven() const { return alignment_.getNumOccurrences() > 0; }

 private:
  llvm::cl::list<std::string> host_;
  llvm::cl::opt<std::string> order_;
  llvm::cl::opt<long> minPartitionSize_;
  llvm::cl::opt<double> memoryGrowth_;
  llvm::cl::opt<long> memorySlack_;
  llvm::cl::opt<long> alignment_;
  llvm::cl::opt<bool> accumulateGradients_;
};

/// Names of all passes, in the order of the pipeline.
std::vector<std::string> passNames();

}  // namespace gravure::tool
