#pragma once
// Which programs gravure opt prints: the result, and what it was before and after passes.

#include "passes/pipeline/pipeline.h"
#include "tools/gravure/command/command.h"

#include <string>

namespace gravure::tool {

/// Programs are printed to standard output, one after another between the lines that --split-input cuts at, each
/// under a comment that says where it comes from.
class ProgramPrints {
 public:
  explicit ProgramPrints(Command& command);
  /// UsageError for a pass that does not run.
  void check(const Pipeline& pipeline) const;

  void begin(const Program& given);
  void before(const Pass& pass, const Program& program);
  void after(const Pass& pass, const Program& program);
  /// The result, unless it was printed last.
  void end(const Program& result);

 private:
  void print(const Program& program, const std::string& title);

  llvm::cl::opt<bool> afterAll_;
  llvm::cl::list<std::string> before_, after_;
  llvm::cl::opt<bool> changed_;
  bool printed_ = false;    // anything
  bool isLatest_ = false;   // what was printed last is the program as it is now
  std::string latestText_;  // with --print-changed
};

}  // namespace gravure::tool
