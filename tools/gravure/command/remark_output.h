#pragma once
// Where remarks go: --remarks and --remarks-file.

#include "ir/core/remark.h"
#include "tools/gravure/command/command.h"

namespace gravure::tool {

class RemarkOutput {
 public:
  explicit RemarkOutput(Command& command);
  /// UsageError for a wrong value; before anything runs.
  void check() const;
  /// Prints to standard error, or to the file; nothing with --remarks=none.
  void write(const Remarks& remarks) const;

 private:
  llvm::cl::opt<std::string> format_;
  llvm::cl::opt<std::string> file_;
};

/// Appends copies of `from`.
void appendRemarks(Remarks& to, const Remarks& from);

}  // namespace gravure::tool
