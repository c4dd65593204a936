#pragma once
// Dense indices of the nodes and values of one entry.
//
// Node: a statement of the entry's top block, by index from 0 in program order; what stands in its
// blocks belongs to it. Where partitions are entered, their statements are nodes in their stead, and
// they are no nodes themselves: their parameters and results are names that no node defines.
// Tensor: a value that holds storage, by index in the order in which a run comes to it: inputs of
// the entry first, what stands in a node's blocks before its results.
//
// Edges are kept as flat arrays of indices: a large graph lies scattered in memory, and going
// through it once for all analyses costs less than going through it once for each.

#include "ir/core/nested_nodes.h"
#include "ir/core/program.h"
#include "ir/facts/op_facts.h"

#include <llvm/ADT/ArrayRef.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace gravure {

/// What a numbering makes of cudagraph::partition and launch.
enum class Partitions : uint8_t { AsNodes, Entered };

class Numbering {
 public:
  /// Linear in nodes plus edges. The numbering holds until the graph changes.
  explicit Numbering(const Entry& entry, Partitions partitions = Partitions::AsNodes);

  /// True if both give the same nodes, values and edges the same indices.
  bool operator==(const Numbering&) const = default;

  const Graph& graph() const { return *graph_; }
  int32_t size() const { return static_cast<int32_t>(nodes_.size()); }
  Node* node(int32_t i) const { return nodes_[i]; }
  llvm::ArrayRef<Node*> nodes() const { return nodes_; }
  const OpFacts& facts(int32_t i) const { return *facts_[i]; }

  /// One past the largest index of a value; bounds arrays indexed by value.
  size_t valueBound() const { return definedBy_.size(); }
  static int32_t indexOf(const Value* value) { return static_cast<int32_t>(value->unique()); }
  Value* value(int32_t index) const { return values_[index]; }
  /// Node that defines the value, in its blocks too; -1 for an input of the entry, and for a name
  /// that an entered partition gives.
  int32_t definedBy(int32_t index) const { return definedBy_[index]; }

  int32_t tensorCount() const { return static_cast<int32_t>(tensors_.size()); }
  /// Index of the value that tensor `t` is.
  int32_t valueOfTensor(int32_t t) const { return tensors_[t]; }
  /// -1 for values that hold no storage.
  int32_t tensorOf(const Value* value) const { return tensorOf_[indexOf(value)]; }

  /// True if node `i` has blocks.
  bool isNested(int32_t i) const { return nested_[i]; }
  /// Calls `visit(const Node*)` for node `i` and each node in its blocks, in order.
  template <typename Visit>
  void forEachNested(int32_t i, Visit&& visit) const {
    forEachNode(nodes_[i], visit);
  }
  /// Indices of the values that node `i` uses: its inputs, and the inputs of the nodes and the
  /// results of its blocks. A value may occur several times.
  llvm::ArrayRef<int32_t> used(int32_t i) const { return slice(used_, usedBegin_, i); }
  /// Indices of its own results.
  llvm::ArrayRef<int32_t> results(int32_t i) const { return slice(results_, resultsBegin_, i); }
  /// Calls `visit(value)` for each value that node `i` or a node in its blocks writes.
  template <typename Visit>
  void forEachWrittenValue(int32_t i, Visit&& visit) const {
    if (!facts_[i]->writes && !nested_[i]) return;
    forEachNested(i, [&](const Node* inner) {
      for (const Value* value : writtenInputs(inner)) visit(value);
    });
  }
  /// Entered partitions, and the index of the first statement of each.
  llvm::ArrayRef<std::pair<Node*, int32_t>> entered() const { return entered_; }

 private:
  static llvm::ArrayRef<int32_t> slice(const std::vector<int32_t>& all,
                                       const std::vector<int32_t>& begin, int32_t i) {
    return llvm::ArrayRef<int32_t>(all).slice(begin[i], begin[i + 1] - begin[i]);
  }
  void add(Node* node, Partitions partitions);
  void addEdges(const Node* node);
  void define(const Value* value, int32_t node);
  void defineOutputs(const Node* node, int32_t index);

  const Graph* graph_;
  std::vector<Node*> nodes_;
  std::vector<const OpFacts*> facts_;
  std::vector<bool> nested_;
  std::vector<int32_t> usedBegin_, used_;  // by node: where its own begin in used_; and one more
  std::vector<int32_t> resultsBegin_, results_;  // likewise
  std::vector<Value*> values_;                   // by index
  std::vector<int32_t> definedBy_;
  std::vector<int32_t> tensorOf_;
  std::vector<int32_t> tensors_;
  std::vector<std::pair<Node*, int32_t>> entered_;
};

}  // namespace gravure
