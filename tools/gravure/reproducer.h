#pragma once
// A reproducer: program, passes and options in one file, which `gravure opt FILE` runs as it is.
//
//   # A reproducer: gravure opt FILE
//   # opt: --passes=partition-graph{order=program min-size=2 memory-growth=0.1 memory-slack=0}
//   # opt: --check-bits
//   # opt: --seed=7
//   # fails: partition-graph: …
//   gravure 1
//   graph step(…): …
//
// Every option of every pass is written down, so nothing is left to defaults or to the machine.

#include "tools/gravure/pass_run.h"

#include <string>
#include <string_view>

namespace gravure::tool {

std::string reproducerText(const PassRun& run, const Program& given, const PassFailure& failure);
/// The run that a text asks for in its comments; nullopt if it has none. FileError, with `file` and the
/// line, for one that cannot be read.
std::optional<PassRun> reproducerRun(std::string_view text, const std::string& file,
                                     size_t firstLine);

struct Reduced {
  PassRun run;
  Program program;
  PassFailure failure;
};
/// Fewer passes, a smaller program and fewer rewrites that fail with the same pass and in the same phase.
/// `failure` is what `run` does on `given`. The inputs of a proof are drawn from types.
Reduced reduceFailure(PassRun run, const Program& given, const PassFailure& failure);

}  // namespace gravure::tool
