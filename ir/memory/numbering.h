#pragma once
// Dense numbers for the nodes and values of one entry, and which values share storage.
//
// Node: a statement of the entry's top block, numbered from 0 in program order; what stands in its
// blocks belongs to it. Storage: what tensors that may alias share; distinct inputs of an entry are
// distinct storages. A storage is named by the number of its first value.
//
// Edges are kept as flat arrays of numbers: a large graph lies scattered in memory, and going through
// it once for all analyses costs less than going through it once for each.

#include "ir/core/nested_nodes.h"
#include "ir/core/program.h"
#include "ir/facts/op_facts.h"

#include <llvm/ADT/ArrayRef.h>
#include <llvm/ADT/DenseSet.h>

#include <cstdint>
#include <vector>

namespace gravure {

class Numbering {
 public:
  /// Linear in nodes plus edges. The numbering holds until the graph changes.
  explicit Numbering(const Entry& entry);

  int32_t size() const { return static_cast<int32_t>(nodes_.size()); }
  Node* node(int32_t i) const { return nodes_[i]; }
  const OpFacts& facts(int32_t i) const { return *facts_[i]; }

  /// One past the largest number of a value; bounds arrays indexed by value or storage.
  size_t valueBound() const { return definedBy_.size(); }
  static int32_t numberOf(const Value* value) { return static_cast<int32_t>(value->unique()); }
  Value* value(int32_t number) const { return values_[number]; }
  /// Node that defines the value, in its blocks too; -1 for an input of the entry.
  int32_t definedBy(int32_t number) const { return definedBy_[number]; }
  /// -1 for values that hold no storage.
  int32_t storageOf(int32_t number) const { return storage_[number]; }
  int32_t storageOf(const Value* value) const { return storage_[numberOf(value)]; }
  /// True if some node of the entry writes to the storage.
  bool isWritten(int32_t storage) const { return written_[storage]; }
  /// True for a value that holds a storage, to which no node of the entry writes.
  bool isNeverWritten(const Value* value) const {
    const int32_t storage = storageOf(value);
    return storage >= 0 && !isWritten(storage);
  }
  /// True if the storage came in with an input of the entry.
  bool isExternal(int32_t storage) const { return definedBy_[storage] < 0; }

  /// True if node `i` has blocks.
  bool isNested(int32_t i) const { return nested_[i]; }
  /// Calls `visit(const Node*)` for node `i` and each node in its blocks, in order.
  template <typename Visit>
  void forEachNested(int32_t i, Visit&& visit) const {
    forEachNode(nodes_[i], visit);
  }
  /// Numbers of the values that node `i` uses: its inputs, and the inputs of the nodes and the results
  /// of its blocks. A value may occur several times.
  llvm::ArrayRef<int32_t> used(int32_t i) const { return slice(used_, usedBegin_, i); }
  /// Numbers of its own results.
  llvm::ArrayRef<int32_t> results(int32_t i) const { return slice(results_, resultsBegin_, i); }
  /// Calls `visit(storage)` for each storage that node `i` or a node in its blocks writes.
  template <typename Visit>
  void forEachWritten(int32_t i, Visit&& visit) const {
    if (!facts_[i]->writes && !nested_[i]) return;
    forEachNested(i, [&](const Node* inner) {
      for (const Value* v : writtenInputs(inner)) {
        if (storageOf(v) >= 0) visit(storageOf(v));
      }
    });
  }

 private:
  static llvm::ArrayRef<int32_t> slice(const std::vector<int32_t>& all,
                                       const std::vector<int32_t>& begin, int32_t i) {
    return llvm::ArrayRef<int32_t>(all).slice(begin[i], begin[i + 1] - begin[i]);
  }
  void addEdges(const Node* node);
  void define(const Value* value, int32_t node);
  void defineOutputs(const Node* node, int32_t number);
  void unite(const Value* a, const Value* b);
  int32_t find(int32_t value);

  std::vector<Node*> nodes_;
  std::vector<const OpFacts*> facts_;
  std::vector<bool> nested_;
  std::vector<int32_t> usedBegin_, used_;        // by node: first place in used_; and one more
  std::vector<int32_t> resultsBegin_, results_;  // likewise
  std::vector<Value*> values_;                   // by number
  std::vector<int32_t> definedBy_;
  std::vector<int32_t> storage_;  // a union-find forest while it is built, its roots afterwards
  std::vector<bool> written_;
};

/// Storages of what the caller gets of `entry`, who may count on each having its own.
llvm::DenseSet<int32_t> resultStorages(const Entry& entry, const Numbering& numbering);

}  // namespace gravure
