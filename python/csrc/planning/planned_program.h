#pragma once
// A program planned for the runtime, with a reproducer where a pass fails.

#include "passes/pipeline/program_plan.h"

#include <string>

namespace gravure {

/// Where a program was read from: a file, or a text that nobody else may have.
struct ProgramSource {
  std::string path;  // "" for a text
  std::string text;
};

/// planProgram. A c10::Error of a pass then says how to see it again with `gravure opt`: `source` is
/// written to a file in the folder for temporary ones, with the passes and their options, unless it is one
/// already.
const std::vector<PartitionPlan>& planOrReproduce(Program& program, PassContext& context,
                                                  const ProgramSource& source);

}  // namespace gravure
