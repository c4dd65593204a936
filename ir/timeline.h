#pragma once
// One flat order of a program's operator calls, and how long each storage lives in it.
//
// Step: one leaf node (a node that calls an operator; cudagraph::partition and launch are entered,
// their blocks inlined). Entries follow one another: forward, then backward. Storage: what tensors
// that may alias share; views, in-place results, block parameters and their operands, and forward's
// saved outputs with backward's saved inputs belong to one storage.

#include "ir/program.h"

#include <llvm/ADT/DenseMap.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace gravure {

/// Where a storage comes from.
enum class StorageOrigin : uint8_t {
  External,   // an input of an entry: the caller's memory
  Fresh,      // allocated by the step `begin`
};

struct StorageLife {
  StorageOrigin origin = StorageOrigin::Fresh;
  int64_t begin = 0;          // first step at which it exists
  int64_t end = 0;            // first step at which it no longer does: after its last reader
  std::optional<int64_t> bytes;  // nullopt if known only at run time
  Value* first = nullptr;     // the value that brought it about
  bool result = false;        // leaves the program as a result, so it lives to the end of its entry
};

class Timeline {
 public:
  /// Linear in nodes plus edges.
  static Timeline build(const Program& program);

  const std::vector<Node*>& steps() const { return steps_; }
  const std::vector<StorageLife>& storages() const { return storages_; }
  /// Storage of a tensor value; -1 for values that hold none.
  int64_t storageOf(const Value* value) const;
  /// Position of a leaf node in steps(); -1 if it is none.
  int64_t stepOf(const Node* node) const;
  /// First step of entry `index` and one past its last.
  std::pair<int64_t, int64_t> entryRange(size_t index) const { return ranges_.at(index); }

 private:
  friend class TimelineBuilder;
  std::vector<Node*> steps_;
  std::vector<StorageLife> storages_;
  llvm::DenseMap<const Value*, int64_t> storageOf_;
  llvm::DenseMap<const Node*, int64_t> stepOf_;
  std::vector<std::pair<int64_t, int64_t>> ranges_;
};

}  // namespace gravure
