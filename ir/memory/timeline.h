#pragma once
// One flat order of a program's operator calls, and how long each storage lives in it.
//
// Call: one leaf node, that is a node that calls an operator. cudagraph::partition and launch are
//   entered, so the nodes of their blocks are calls; prim::If with all that its blocks do is one call.
// Position: of a call in the order. Entries follow one another: forward, then backward.
// Storage, life: those of storage_accesses.h and storage_lives.h, with partitions entered; but a
//   collective that is never waited for keeps what it has open to the end of the program. What forward
//   saves and backward takes is one storage. An operator that may alias either of two values joins them
//   in one storage, which then holds two allocations: allocates() tells them.

#include "ir/core/program.h"

#include <llvm/ADT/ArrayRef.h>
#include <llvm/ADT/DenseMap.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace gravure {

struct EntryMemory;

/// Where a storage comes from.
enum class StorageOrigin : uint8_t {
  External,  // the caller's memory: an input of an entry, or a result moved out by cudagraph::own
  Fresh,     // allocated by the call at `begin`
};

struct StorageLife {
  StorageOrigin origin = StorageOrigin::Fresh;
  int64_t begin = 0;  // first position at which it exists
  int64_t end = 0;    // first position at which it no longer does: after its last reader, and
                      // after the wait of a collective that reads or writes it
  std::optional<int64_t> bytes;  // that `first` needs; nullopt if known only at run time
  Value* first = nullptr;        // the value that brought it about
  bool result = false;  // leaves the program as a result, so it lives to the end of its entry
  // It lives to here whoever reads it: the end of an entry that returns or saves it, or of the program
  // where a collective leaves it open.
  int64_t heldUntil = 0;
  bool written = false;  // some node writes to it, through whatever alias
};

class Timeline {
 public:
  /// Linear in nodes plus edges. `copiesStaged`: a partition's operand that is tagged `staged` is
  /// read from its copy, as after emit-runtime-calls: the block parameters that see it share a
  /// storage of their own.
  static Timeline build(const Program& program, bool copiesStaged = false);
  /// The same of what was found out about the entries, with partitions entered.
  static Timeline build(const Program& program,
                        llvm::ArrayRef<std::shared_ptr<const EntryMemory>> memories);

  /// The calls, by position.
  const std::vector<Node*>& nodes() const { return nodes_; }
  const std::vector<StorageLife>& storages() const { return storages_; }
  /// Storage of a tensor value; -1 for values that hold none.
  int64_t storageOf(const Value* value) const;
  /// Position of a call; -1 where `node` is none.
  int64_t positionOf(const Node* node) const;
  /// True if the call that defines `value` allocates it: a tensor that aliases no operand.
  bool allocates(const Value* value) const;
  /// First position of entry `index` and one past its last.
  std::pair<int64_t, int64_t> entryRange(size_t index) const { return ranges_.at(index); }

 private:
  friend class TimelineBuilder;
  std::vector<Node*> nodes_;
  std::vector<StorageLife> storages_;
  struct EntryStorages {
    const Graph* graph = nullptr;
    std::vector<int32_t> storage;  // by Value::unique(); -1 for none
    std::vector<bool> allocates;
    std::vector<int32_t> position;  // of the call whose first output it is; -1 for others
  };
  const EntryStorages* storagesOf(const Value* value) const;
  std::vector<EntryStorages> storageOf_;
  llvm::DenseMap<const Node*, int64_t> positionOf_;  // of calls without outputs
  std::vector<std::pair<int64_t, int64_t>> ranges_;
};

}  // namespace gravure
