#pragma once
// How long the storages of an entry are in use when its nodes run in some order, and how many bytes
// are in use at once.
//
// Rule. A storage lives from the first node that has it in use (that makes, reads or writes it, or
//   ends what a collective does with it: StorageAccesses::forEachInUse) to the last one. It lives
//   to the end of the entry if a result lies in it, or if a collective that has it open is never
//   waited for.
// planPartitions weighs orders by it, and Timeline tells the lives of a program as it stands.

#include "ir/memory/storage_accesses.h"

#include <llvm/ADT/ArrayRef.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace gravure {

/// Positions [begin, end) in an order of nodes; empty where nothing has the storage in use.
struct Life {
  int32_t begin = 0;
  int32_t end = 0;

  bool isEmpty() const { return begin == end; }
  void add(int32_t position) {
    begin = isEmpty() ? position : std::min(begin, position);
    end = std::max(end, position + 1);
  }
};

/// By storage, in program order, with the copies of staged operands. Linear in nodes plus edges.
std::vector<Life> livesInProgramOrder(const StorageAccesses& accesses);

/// The storages of known size that nodes of an entry make, ready for many orders of these nodes.
class LiveBytes {
 public:
  /// Linear in nodes plus edges.
  explicit LiveBytes(const StorageAccesses& accesses);
  /// Most bytes in use at one node of `order`, which has all nodes. Linear in nodes plus edges.
  int64_t peak(llvm::ArrayRef<int32_t> order) const;

 private:
  std::vector<int64_t> bytes_;  // by sized storage
  std::vector<bool> toTheEnd_;  // by sized storage
  std::vector<int32_t> begin_;  // by node: where its own begin in inUse_; and one more
  std::vector<int32_t> inUse_;  // sized storages
};

}  // namespace gravure
