#pragma once
// The partition plan: which nodes become one CUDA graph, decided before anything is rewritten.

#include "passes/pass.h"

#include <cstdint>
#include <string>
#include <vector>

namespace llvm {
class raw_ostream;
}

namespace gravure {

/// One run of nodes in the planned order, all captured or all on the host.
struct PlannedRun {
  bool captured = false;
  int64_t index = -1;               // partition's number, dense, in planned order; -1 for host runs
  std::vector<Node*> nodes;         // in planned order; never empty
  std::vector<Value*> inputs;       // defined outside, used inside; order of first use; no duplicates
  std::vector<Value*> outputs;      // defined inside, used outside or returned; order of definition
};

struct PartitionPlan {
  /// All top-level nodes of the entry's graph, each once, in a legal order.
  std::vector<PlannedRun> runs;
  PartitionOrder order = PartitionOrder::Levels;
  int64_t programOrderPartitions = 0;  // what each order gives, both printed
  int64_t levelPartitions = 0;
  int64_t programOrderPeak = 0;        // peak live bytes of static-shaped storages in each order
  int64_t levelPeak = 0;

  int64_t partitionCount() const;
  /// "" if every invariant above holds and the order is legal for `entry`: data flow, mutation
  /// through any alias, collectives, random draws and effects keep their order, and no node with a
  /// host reason is in a captured run; else one sentence that names the clash. Quadratic in nothing.
  std::string verify(const Entry& entry) const;
  void print(llvm::raw_ostream& os) const;
};

/// Decides. `entry` is not changed. Reads host= and fate= as classify-capturability and
/// group-collectives wrote them.
PartitionPlan planPartitions(const Entry& entry, const PassOptions& options);

}  // namespace gravure
