#pragma once
// Times reading, printing and each pass on one generated program, in a process of its own.

#include "tools/gravure/bench/bench_shapes.h"

#include <cstdint>
#include <string>
#include <vector>

namespace gravure::tool {

struct BenchResult {
  std::string shape;
  int64_t nodes = 0;
  double readMs = 0, printMs = 0, verifyMs = 0;  // least of all repetitions
  std::vector<double> passMs;                    // one a pass, in the order of the pipeline
  double verifiedMs = 0;  // all passes, each with its verifier and its own checks
  int64_t peakBytes = 0;  // by which all passes raise resident memory

  double passesMs() const;
  /// Takes each figure of `other`, measured on the same program, that is less.
  void keepLeast(const BenchResult& other);
};

/// Forks, measures there, and returns what the child found. std::runtime_error if it failed.
BenchResult measurePasses(const BenchShape& shape, int64_t nodes, int64_t repetitions);

}  // namespace gravure::tool
