#pragma once
// The partition plan: which nodes become one CUDA graph, decided before anything is rewritten.

#include "passes/pass.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace llvm {
class raw_ostream;
}

namespace gravure {

/// One section of nodes in the planned order, all captured or all on the host.
struct PlannedSection {
  bool captured = false;
  int64_t index = -1;           // partition's index, dense, in planned order; -1 for host sections
  std::vector<Node*> nodes;     // in planned order; never empty
  std::vector<Value*> inputs;   // defined outside, used inside; order of first use; no duplicates
  std::vector<Value*> outputs;  // defined inside, used outside or returned; order of definition
};

/// A node that the plan itself keeps on the host, though its operator could be captured.
struct PlannedHost {
  Node* node = nullptr;
  /// TooSmall, or OpenCollective: program order cuts through its fate.
  HostReason reason = HostReason::TooSmall;
};

struct PartitionPlan {
  /// All top-level nodes of the entry's graph, each once, in a legal order; neighbours differ in
  /// `captured`.
  std::vector<PlannedSection> sections;
  PartitionOrder order = PartitionOrder::Levels;
  std::vector<PlannedHost> keptOnHost;  // in program order
  // What each order gives, whichever is taken: partitions; captured and host sections together; peak live
  // bytes of storages of known size.
  int64_t programOrderPartitions = 0, levelPartitions = 0;
  int64_t programOrderSections = 0, levelSections = 0;
  int64_t programOrderPeak = 0, levelPeak = 0;
  /// Parts of the program that levels were taken in, one after the other, to keep the peak down.
  int32_t levelParts = 1;
  /// Why levels were wished for and not taken, "" if they were.
  std::string levelsRefused;

  int64_t partitionCount() const;
  /// "" if every invariant above holds and the order is legal for `entry`: data flow, mutation
  /// through any alias, collectives, random draws and effects keep their order, no fate is split, and
  /// no node with a host reason and no number node is in a captured section; else one sentence that names
  /// the clash. Works from the definitions, not from the dependences that the plan was made from.
  /// Quadratic in nothing.
  std::string verify(const Entry& entry) const;
  void print(llvm::raw_ostream& os) const;
};

/// Decides. `entry` is not changed. Reads host= and fate= as classify-capturability and
/// group-collectives wrote them. TORCH_CHECK if `entry` has partitions already. Linear in nodes plus
/// edges, for each round of the minimum size and of fates that push each other.
///
/// Order, wished as options.order says:
///   Levels   as few partitions as the dependences allow (partition_levels.h), of the placements that
///            keep the fewest the one nearest to the program; taken if planned peak bytes grow over
///            program order by at most options.memoryGrowth of it or options.memorySlack, whichever
///            is more; else the next placement, else program order, and levelsRefused says so.
///   Program  maximal sections as the program has them; number nodes move out of the way.
/// Partitions of fewer than options.minPartitionSize operator calls become host nodes, and levels are
/// taken anew without them. Views count as none, an operator that writes a list as one a tensor of it.
PartitionPlan planPartitions(const Entry& entry, const PassOptions& options,
                             const KeptAnalyses& analyses = {});

}  // namespace gravure
