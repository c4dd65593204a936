#pragma once
// A reproducer: program, passes and options in one file, which `gravure opt FILE` runs as it is.
// passes/pipeline/reproducer_head.h says what it looks like.

#include "tools/gravure/opt/pass_run.h"

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
