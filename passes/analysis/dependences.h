#pragma once
// Which nodes must keep their order.
//
// b depends on a, a before b in the program, if
//   data        b uses a value of a
//   memory      one of them writes a storage that the other reads or writes, through any alias; a wait
//               reads and writes what its collective does (ir/memory/storage_accesses.h)
//   random      both draw from one generator, or save its state
//   collective  both start a collective: ranks must start them in one order
//   effect      both have effects on the host
// Only neighbours in these orders are linked: the transitive closure is the same, and the number of
// links is linear in nodes plus edges (each reader is linked once to the write before it and once to
// the write after it).

#include "ir/memory/entry_memory.h"

#include <llvm/ADT/ArrayRef.h>

namespace gravure {

class Dependences {
 public:
  /// Linear in nodes plus edges.
  explicit Dependences(const Entry& entry);
  /// `memory`: the entry's, with partitions as nodes.
  Dependences(const Entry& entry, std::shared_ptr<const EntryMemory> memory);

  Dependences(const Dependences&) = delete;
  Dependences& operator=(const Dependences&) = delete;

  const Numbering& numbering() const { return *memory_->numbering; }
  const StorageAccesses& accesses() const { return memory_->accesses; }
  int32_t size() const { return numbering().size(); }
  /// Nodes that node `i` depends on; each is smaller than `i`, and occurs once.
  llvm::ArrayRef<int32_t> before(int32_t i) const {
    return llvm::ArrayRef<int32_t>(links_).slice(begin_[i], begin_[i + 1] - begin_[i]);
  }

 private:
  friend class DependenceBuilder;
  const std::shared_ptr<const EntryMemory> memory_;
  std::vector<int32_t> begin_;
  std::vector<int32_t> links_;
};

}  // namespace gravure
