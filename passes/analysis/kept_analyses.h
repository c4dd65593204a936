#pragma once
// What is found out about the memory of a program, built when it is first asked for and kept while it
// holds.
//
// runPipeline keeps them for the program that it runs passes on. A pass that only marks nodes leaves
// what is kept as it is, and so does one that says that it changed nothing (PassContext::unchanged);
// behind any other all is forgotten. What was handed out stays with whoever has it, right or not. A pass
// that is about to rewrite an entry calls forget(entry), so that its analyses take no memory beside what
// the rewrite needs, and so that it may ask about the entry again behind it.
// Outside of a pipeline nothing is kept, and each call builds anew.

#include "ir/core/program.h"

#include <array>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace gravure {

class Dependences;
class Timeline;
struct EntryMemory;
enum class StagedOperands : uint8_t;

class KeptAnalyses {
 public:
  /// Partitions as nodes.
  std::shared_ptr<const EntryMemory> memoryOf(const Entry& entry) const;
  /// Partitions entered. `staged`: whether they read operands that are tagged `staged`, or copies of them.
  std::shared_ptr<const EntryMemory> enteredMemoryOf(const Entry& entry,
                                                     StagedOperands staged) const;
  std::shared_ptr<const Dependences> dependencesOf(const Entry& entry) const;
  /// Of the one program whose entries are asked about.
  std::shared_ptr<const Timeline> timelineOf(const Program& program, StagedOperands staged) const;

  /// From here on what is asked for is kept.
  void beginToKeep() { keeps_ = true; }
  void forget();
  /// Forgets what is known of one entry, and of the program as a whole.
  void forget(const Entry& entry);
  /// Forgets what depends on the tags of partitions' operands.
  void forgetCopies();
  /// TORCH_INTERNAL_ASSERT that what is kept is what would be built now.
  void check(const Program& program) const;

 private:
  struct OfEntry {
    const Graph* graph = nullptr;
    std::shared_ptr<const EntryMemory> asNodes, aliased, copied;
    std::shared_ptr<const Dependences> dependences;
  };
  /// What is kept about the entry; `scratch` where nothing is kept.
  OfEntry& keptOf(const Entry& entry, OfEntry& scratch) const;

  bool keeps_ = false;
  // Asking does not change what is known: verifiers may ask.
  mutable std::vector<OfEntry> entries_;
  mutable std::array<std::shared_ptr<const Timeline>, 2> timelines_;  // by StagedOperands
};

}  // namespace gravure
