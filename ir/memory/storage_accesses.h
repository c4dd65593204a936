#pragma once
// Who touches the memory of an entry, and when: what every order of its nodes must respect.
//
// Terms. Node, storage: those of Numbering. Maker: the node that defines a storage's first value; none
//   for the caller's. Access: a node reads or writes a storage, through whatever name.
// Collectives. One that does not block the host goes on behind the node that starts it, on a stream of
//   its own. Until its wait it has memory open: its operands for reading, its results and the operands
//   that its schema writes (all_reduce_) for writing.
//   Wait: wait_tensor on one of its results, through whatever view or list member. Span: from the start
//     to the wait with which each result has been waited for; to the end where one never is. All
//     results of one call are one piece of work, which is over at its first wait: nobody counts on that
//     before the first, and nobody waits behind the last.
//   A wait is an access, too: the first and the last one of a collective read what it reads and write
//     what it writes, and any wait writes what it waits for. Whoever keeps the accesses of a storage in
//     order, of which one is a write, leaves each on its side of every start and wait.
//   Clash: a write to what the collective reads within its span, or any access to what it writes before
//     the results in it have been waited for. Eager runs such a program, and it races there as here: the
//     node stays between start and wait.
// Complexity: linear in nodes, edges and clashes. Without collectives, nothing is looked at.

#include "ir/memory/numbering.h"

#include <llvm/ADT/ArrayRef.h>
#include <llvm/ADT/DenseMap.h>
#include <llvm/ADT/DenseSet.h>
#include <llvm/ADT/STLFunctionalExtras.h>
#include <llvm/ADT/SmallVector.h>

#include <cstdint>
#include <vector>

namespace gravure {

/// What a collective has open, and how long. Positions and storages are those of who looks.
struct CollectiveSpan {
  const Node* start = nullptr;
  int64_t begin = 0;                        // position of the start
  int64_t end = 0;                          // of the last wait, or one past the last position
  std::vector<int64_t> waits;               // positions, ascending
  llvm::SmallVector<int64_t, 2> reads;      // storages, but for those that it writes
  llvm::SmallVector<int64_t, 2> writes;     // storages
  llvm::SmallVector<int64_t, 2> writeEnds;  // of each: where the last result in it was waited for
  llvm::SmallVector<const Value*, 1> left;  // results that nothing waits for, after finish()
};

/// A node that touches what an open collective works on.
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

/// Finds the spans of nodes that come one by one, in program order.
class SpanFinder {
 public:
  using StorageOf = llvm::function_ref<int64_t(const Value*)>;

  /// `storageOf`: -1 for values without memory. What it refers to must outlive the finder.
  explicit SpanFinder(StorageOf storageOf) : storageOf_(storageOf) {}

  /// The next node, without what stands in its blocks: that comes next. Positions never fall.
  void next(const Node* node, int64_t position);
  /// Ends what is still open at `end`, one past the last position. Called once.
  void finish(int64_t end);

  std::vector<CollectiveSpan> spans;
  /// By position. Where several collectives have a storage open for writing, the latest one counts:
  /// its start clashes with the one before.
  std::vector<CollectiveClash> clashes;
  /// By position, after finish().
  std::vector<WaitAccess> waitAccesses;

 private:
  struct Writer {
    size_t span = 0;
    size_t write = 0;        // among CollectiveSpan::writes
    size_t resultsLeft = 0;  // in this storage
  };
  struct Open {
    llvm::SmallVector<size_t, 1> readers;  // spans; closed ones are dropped when next seen
    llvm::SmallVector<Writer, 1> writers;
  };
  void start(const Node* node, int64_t position);
  void wait(const Node* node, int64_t position);
  void noteClashes(const Node* node, const OpFacts& facts, int64_t position);
  void noteClash(int64_t position, size_t span);
  void followResults(const Node* node);
  /// How many results of `span` that adds to those waited for.
  size_t markWaited(const CollectiveSpan& span, const Value* waited, int64_t storage);
  void dropClosed(llvm::SmallVectorImpl<Writer>& writers) const;
  Open* openOn(const Value* value);

  StorageOf storageOf_;
  std::vector<bool> isOpen_;                             // by span
  std::vector<size_t> resultsLeft_;                      // by span: not waited for yet
  llvm::DenseSet<const Value*> waited_;                  // results
  llvm::DenseMap<int64_t, Open> open_;                   // by storage
  llvm::DenseMap<const Value*, const Value*> resultOf_;  // of views and members: the result
  size_t openCount_ = 0;
};

/// The accesses of one entry in program order. Positions are numbers of nodes.
class StorageAccesses {
 public:
  /// `numbering` must outlive it.
  explicit StorageAccesses(const Numbering& numbering);

  /// Calls `visit(storage)` for what node `i` reads as a wait. What else it reads: Numbering::used.
  template <typename Visit>
  void forEachReadByWait(int32_t i, Visit&& visit) const {
    for (const WaitAccess& access : waitAccessesOf(i)) {
      if (!access.writes) visit(static_cast<int32_t>(access.storage));
    }
  }
  /// Calls `visit(storage)` for what node `i` writes, as a wait, too. A storage may come twice.
  template <typename Visit>
  void forEachWritten(int32_t i, Visit&& visit) const {
    numbering_.forEachWritten(i, visit);
    for (const WaitAccess& access : waitAccessesOf(i)) {
      if (access.writes) visit(static_cast<int32_t>(access.storage));
    }
  }
  /// True if the storage has a writer: a node, or a collective behind its start.
  bool isWritten(int32_t storage) const {
    return numbering_.isWritten(storage) || openUntil_.contains(storage);
  }
  /// True for a value whose memory no node writes, and no collective once the value is there: all nodes
  /// behind its maker read the same.
  bool isNeverWritten(const Value* value) const;

  /// By start.
  const std::vector<CollectiveSpan>& spans() const { return spans_; }
  const std::vector<CollectiveClash>& clashes() const { return clashes_; }

 private:
  llvm::ArrayRef<WaitAccess> waitAccessesOf(int32_t i) const {
    if (waitBegin_.empty()) return {};
    return llvm::ArrayRef<WaitAccess>(waitAccesses_)
        .slice(waitBegin_[i], waitBegin_[i + 1] - waitBegin_[i]);
  }

  const Numbering& numbering_;
  std::vector<CollectiveSpan> spans_;
  std::vector<CollectiveClash> clashes_;
  std::vector<WaitAccess> waitAccesses_;
  std::vector<int32_t> waitBegin_;              // by node: its first in waitAccesses_; and one more
  llvm::DenseMap<int32_t, int64_t> openUntil_;  // by storage that a collective writes
};

}  // namespace gravure
