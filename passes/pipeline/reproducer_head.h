#pragma once
// The first lines of a reproducer: in front of a program's text they say how passes fail on it.
//
//   # A reproducer: gravure opt FILE
//   # opt: --passes=partition-graph{order=program min-size=2 memory-growth=0.1 memory-slack=0}
//   # opt: --seed=7
//   # fails: partition-graph: …
//
// Every option of every pass is written down, so nothing is left to defaults or to the machine.
// tools/gravure/opt/reproducer.h reads it.

#include "passes/pipeline/pipeline.h"

#include <llvm/ADT/StringRef.h>

#include <string>
#include <vector>

namespace gravure {

/// In front of each flag.
inline constexpr llvm::StringLiteral kReproducerMark = "# opt:";

/// `options`: before the first pass. `flags`: of gravure opt, besides --passes. `failure`: what is wrong;
/// only its first line is kept.
std::string reproducerHead(const Pipeline& pipeline, const PassOptions& options,
                           const std::vector<std::string>& flags, llvm::StringRef failure);

}  // namespace gravure
