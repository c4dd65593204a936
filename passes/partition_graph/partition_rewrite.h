#pragma once
// The rewrite of partition-graph: moves nodes into blocks and re-routes the values that cross edges.
//
// Nodes are moved, not cloned, so values keep their names and uses. Uses are re-routed a whole list at
// a time: a list of k uses is never searched or shortened one by one, which would cost k².

#include "passes/partition_graph/partition_plan.h"

#include <llvm/ADT/ArrayRef.h>

#include <vector>

namespace gravure {

class PartitionRewriter {
 public:
  PartitionRewriter(Graph& graph, const PartitionPlan& plan, int64_t firstIndex);
  void run();

 private:
  /// One partition's parameter for a value.
  struct Entrance {
    Node* partition;
    Value* parameter;
  };

  void moveNodes();
  void makeResults();
  void makeParameters();
  void connectOperands();
  void routeUses(Value* value, llvm::ArrayRef<Entrance> entrances);
  Value* outerOf(Value* value) const;

  Graph& graph_;
  const PartitionPlan& plan_;
  const int64_t firstIndex_;
  std::vector<Node*> partitions_;                // by index
  std::vector<const PlannedSection*> captured_;  // by index
  std::vector<Value*> outer_;                    // by value: the partition's result for it
};

}  // namespace gravure
