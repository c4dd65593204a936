#pragma once
// Who touches the memory of an entry, and when: what every order of its nodes must respect.
//
// The one model of memory: what must keep its order, what is captured together, how long memory
// lives, which address stays, and how much is in use at once are answers from it. Verifiers have a
// model of their own, ir/check/defined_memory.h, so that a fault of this one is seen.
//
// Terms. Node, tensor: those of Numbering. Storage: what tensors that may alias share; distinct
//   inputs of an entry are distinct storages. Storages are numbered densely, in the order of their
//   first tensors. Maker: the node that defines that first tensor; none for the caller's. Access: a
//   node reads or writes a storage, through whatever name. Held: a result of the entry lies in it.
// Staged copies. A partition's operand that is tagged `staged` is read from a copy, once
//   emit-runtime-calls has made it. Whoever asks for the copies enters partitions: what the block
//   parameters of one operand see is one storage, the copy, and the operand is read where the copy
//   is made: an input of the entry at the entry's first node, any other at its partition's first
//   one.
// Collectives. One that does not block the host goes on behind the node that starts it, on a stream
//   of its own. Until its wait it has memory open: its operands for reading, its results and the
//   operands that its schema writes (all_reduce_) for writing.
//   Wait: wait_tensor on one of its results, through whatever view or list member. Span: from the
//     start to the wait with which each result has been waited for; to the end where one never is.
//     All results of one call belong to one Work of PyTorch's, so the first wait may end all of it:
//     nothing counts on the results before the first wait, and nothing waits behind the last one.
//   A wait is an access, too: the first and the last one of a collective read what it reads and
//     write what it writes, and any wait writes what it waits for. So whoever keeps every write of a
//     storage in order with all other accesses to it moves none across a start or a wait.
//   Clash: a write to what the collective reads within its span, or any access to what it writes
//     before the results in it have been waited for. Eager runs such a program, and it races there
//     as here: the node stays between start and wait.
//     Clashes bind nodes to collectives. Where a node clashes with several on one storage that
//     earlier nodes have bound together there, the clash with one of them stands for all: the classes
//     of what is bound are the same, and 5,000 collectives in place on one buffer are no 12 million
//     pairs.
// Complexity: linear in nodes and edges. Without collectives, no span is looked for.
// Classes of anything that is numbered densely are llvm::IntEqClasses, here and elsewhere: one
// array, the smallest member leads, and compress() numbers classes by their leaders, which is the
// order of the program where members are numbered in it.

#include "ir/memory/numbering.h"

#include <llvm/ADT/ArrayRef.h>
#include <llvm/ADT/DenseMap.h>
#include <llvm/ADT/DenseSet.h>
#include <llvm/ADT/SmallVector.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace gravure {

/// What a collective has open, and how long.
struct CollectiveSpan {
  const Node* start = nullptr;
  int64_t begin = 0;                        // position of the start
  int64_t end = 0;                          // of the last wait, or one past the last position
  std::vector<int64_t> waits;               // positions, ascending
  llvm::SmallVector<int64_t, 2> reads;      // storages, but for those that it writes
  llvm::SmallVector<int64_t, 2> writes;     // storages
  llvm::SmallVector<int64_t, 2> writeEnds;  // of each: where the last result in it was waited for
  llvm::SmallVector<const Value*, 1> left;  // results that nothing waits for
};

/// A node that touches what an open collective works on: enough of them to tell what is bound together.
struct CollectiveClash {
  int64_t position = 0;
  size_t span = 0;
};

/// What a wait reads and writes besides its operand.
struct WaitAccess {
  int64_t position = 0;
  int64_t storage = 0;
  bool writes = false;
};

/// What partitions read that are entered: operands, or copies of those that are tagged `staged`.
enum class StagedOperands : uint8_t { Aliased, Copied };

/// The accesses of one entry in program order. Positions are indices of nodes.
class StorageAccesses {
 public:
  /// `numbering` must outlive it. `staged` counts where it has entered partitions.
  explicit StorageAccesses(const Numbering& numbering,
                           StagedOperands staged = StagedOperands::Aliased);

  /// True if both found the same storages, makers, writers and results, and as many collectives.
  bool isAsOf(const StorageAccesses& other) const;

  const Numbering& numbering() const { return numbering_; }
  int32_t storageCount() const { return static_cast<int32_t>(first_.size()); }
  /// -1 for values that hold no storage.
  int32_t storageOf(int32_t index) const { return storage_[index]; }
  int32_t storageOf(const Value* value) const { return storage_[Numbering::indexOf(value)]; }
  /// True for a node's result, by index, whose operator may alias an operand with it. Not for results of
  /// prim::If and of partitions, which share storage with what ends their blocks.
  bool isAlias(int32_t index) const { return alias_[index]; }
  /// The first value in it: an input of the entry if there is one.
  Value* firstOf(int32_t storage) const { return numbering_.value(first_[storage]); }
  /// -1 for the caller's. A staged copy's is the node at which its operand is read.
  int32_t makerOf(int32_t storage) const { return maker_[storage]; }
  /// True if it came in with an input of the entry.
  bool isExternal(int32_t storage) const { return storage < externals_; }
  /// True if a result of the entry lies in it.
  bool isHeld(int32_t storage) const { return held_[storage]; }
  /// True if a collective that has it open is never waited for.
  bool isLeftOpen(int32_t storage) const { return leftOpen_.contains(storage); }
  /// True if it has a writer: a node, or a collective behind its start.
  bool isWritten(int32_t storage) const {
    return isWrittenByNode(storage) || openUntil_.contains(storage);
  }
  bool isWrittenByNode(int32_t storage) const { return written_[storage]; }
  /// True for a value whose memory no node writes, and no collective once the value is there: all
  /// nodes behind its maker read the same.
  bool isNeverWritten(const Value* value) const;

  /// Calls `visit(storage)` for what node `i` reads as a wait. What else it reads: Numbering::used.
  template <typename Visit>
  void forEachReadByWait(int32_t i, Visit&& visit) const {
    for (const WaitAccess& access : waitAccessesOf(i)) {
      if (!access.writes) visit(static_cast<int32_t>(access.storage));
    }
  }
  /// Calls `visit(storage)` for what node `i` writes as a wait.
  template <typename Visit>
  void forEachWrittenByWait(int32_t i, Visit&& visit) const {
    for (const WaitAccess& access : waitAccessesOf(i)) {
      if (access.writes) visit(static_cast<int32_t>(access.storage));
    }
  }
  /// Calls `visit(storage)` for what node `i` writes, as a wait, too. A storage may come twice.
  template <typename Visit>
  void forEachWritten(int32_t i, Visit&& visit) const {
    numbering_.forEachWrittenValue(i, [&](const Value* value) {
      if (storageOf(value) >= 0) visit(storageOf(value));
    });
    forEachWrittenByWait(i, visit);
  }
  /// Calls `visit(storage)` for what must be there while node `i` runs: all that it reads, writes
  /// and makes, and what its collective has open until this wait. A storage may come several times.
  /// One that only its blocks know, and do not use, does not come: makerOf() tells of it.
  template <typename Visit>
  void forEachInUse(int32_t i, Visit&& visit) const {
    const auto see = [&](int32_t index) {
      if (storage_[index] >= 0) visit(storage_[index]);
    };
    for (int32_t index : numbering_.used(i)) see(index);
    for (int32_t index : numbering_.results(i)) see(index);
    for (const WaitAccess& access : waitAccessesOf(i)) visit(static_cast<int32_t>(access.storage));
  }
  /// Calls `visit(storage, position)` where an operand is copied for partitions.
  template <typename Visit>
  void forEachCopied(Visit&& visit) const {
    for (const auto& [storage, position] : copied_) visit(storage, position);
  }

  /// By start.
  const std::vector<CollectiveSpan>& spans() const { return spans_; }
  const std::vector<CollectiveClash>& clashes() const { return clashes_; }

 private:
  llvm::ArrayRef<WaitAccess> waitAccessesOf(int32_t i) const {
    if (waitBegin_.empty()) return {};
    return llvm::ArrayRef<WaitAccess>(waitAccesses_)
        .slice(waitBegin_[i], waitBegin_[i + 1] - waitBegin_[i]);
  }
  void joinTensors(StagedOperands staged);
  void noteUses();
  void findSpans();

  const Numbering& numbering_;
  std::vector<int32_t> storage_;  // by index of a value
  std::vector<bool> alias_;       // likewise
  std::vector<int32_t> first_;    // by storage: index of its first value
  std::vector<int32_t> maker_;    // by storage
  int32_t externals_ = 0;         // the first storages, which inputs bring
  std::vector<bool> held_, written_;
  std::vector<std::pair<int32_t, int32_t>> copied_;  // storage of the operand, position
  std::vector<CollectiveSpan> spans_;
  std::vector<CollectiveClash> clashes_;
  std::vector<WaitAccess> waitAccesses_;
  std::vector<int32_t> waitBegin_;              // by node: its first in waitAccesses_; and one more
  llvm::DenseMap<int32_t, int64_t> openUntil_;  // by storage that a collective writes
  llvm::DenseSet<int32_t> leftOpen_;
};

/// Storages of the results that the caller gets of `entry`, saved values left out: he may count on each
/// having its own.
llvm::DenseSet<int32_t> resultStorages(const Entry& entry, const StorageAccesses& accesses);

}  // namespace gravure
