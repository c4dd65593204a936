#pragma once
// The definitions of ir/memory/storage_accesses.h, worked out one by one: for verifiers alone, so that a
// fault of the analysis is seen. It shares the facts of operators with it, and no code.
//
// Positions are those of the entry's nodes, from 0; what stands in a node's blocks has its
// position.
// Complexity: linear in nodes and edges, and in results of a collective times its waits.

#include "ir/core/program.h"

#include <llvm/ADT/DenseMap.h>
#include <llvm/ADT/IntEqClasses.h>
#include <llvm/ADT/SmallVector.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace gravure {

/// A collective that does not block the host.
struct DefinedCollective {
  const Node* start = nullptr;
  int64_t position = 0;
  llvm::SmallVector<int64_t, 2> reads;      // storages, but for those that it writes
  llvm::SmallVector<int64_t, 2> writes;     // storages
  std::vector<int64_t> waits;               // positions, ascending
  llvm::SmallVector<const Value*, 1> left;  // results that nothing waits for
};

/// What a wait reads or writes besides its operand.
struct DefinedWaitAccess {
  int64_t position = 0;
  int64_t storage = 0;
  bool writes = false;
};

class DefinedMemory {
 public:
  explicit DefinedMemory(const Entry& entry);

  int64_t storageCount() const { return classes_.getNumClasses(); }
  /// -1 for values that hold no storage.
  int64_t storageOf(const Value* value) const;
  /// By start.
  const std::vector<DefinedCollective>& collectives() const { return collectives_; }
  /// By position.
  const std::vector<DefinedWaitAccess>& waitAccesses() const { return accesses_; }
  /// Positions of a collective's start and of another node that shares its fate: a wait, or a node
  /// that clashes with it. Pairs that follow from these, by a third node of one fate, may be missing.
  const std::vector<std::pair<int64_t, int64_t>>& bound() const { return bound_; }

 private:
  /// A node, in the order in which all of them run.
  struct Step {
    const Node* node;
    int64_t position;
  };
  struct Wait {
    size_t step;
    const Value* operand;
  };
  struct Open {
    size_t collective;
    size_t end;  // step of the last wait for the storage in question
  };
  /// Collectives that have one storage open.
  struct OpenOn {
    std::vector<Open> each;
    size_t met = 0;      // the first ones: a node was bound to all of them
    size_t nextEnd = 0;  // no end of these is smaller
    void add(const Open& open);
    void dropEnded(size_t step);
  };
  void joinAliases(const Node* node);
  void findWaits(size_t step);
  void findBound();
  const Value* resultBehind(const Value* value) const;

  llvm::IntEqClasses classes_;                           // by Value::unique()
  std::vector<Step> steps_;                              // with collectives alone
  llvm::DenseMap<int64_t, std::vector<Wait>> waitsOn_;   // by storage
  llvm::DenseMap<const Value*, const Value*> resultOf_;  // of views and list members
  std::vector<DefinedCollective> collectives_;
  llvm::DenseMap<size_t, std::vector<std::pair<int64_t, Open>>> opened_;  // by step of the start
  llvm::DenseMap<size_t, std::vector<std::pair<int64_t, Open>>> openedForReading_;
  std::vector<DefinedWaitAccess> accesses_;
  std::vector<std::pair<int64_t, int64_t>> bound_;
};

}  // namespace gravure
