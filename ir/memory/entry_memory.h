#pragma once
// A numbering with the accesses that are found on it: all that is asked about the memory of one entry.

#include "ir/memory/storage_accesses.h"

#include <memory>
#include <utility>

namespace gravure {

/// Holds until the entry changes. Two that differ in what partitions read may share their numbering.
struct EntryMemory {
  explicit EntryMemory(const Entry& entry, Partitions partitions = Partitions::AsNodes,
                       StagedOperands staged = StagedOperands::Aliased)
      : EntryMemory(std::make_shared<const Numbering>(entry, partitions), staged) {}
  EntryMemory(std::shared_ptr<const Numbering> numbers, StagedOperands staged)
      : numbering(std::move(numbers)), accesses(*numbering, staged) {}
  EntryMemory(const EntryMemory&) = delete;
  EntryMemory& operator=(const EntryMemory&) = delete;

  const std::shared_ptr<const Numbering> numbering;
  const StorageAccesses accesses;
};

}  // namespace gravure
