#include "passes/analysis/kept_analyses.h"

#include "ir/memory/entry_memory.h"
#include "ir/memory/timeline.h"
#include "passes/analysis/dependences.h"

#include <c10/util/Exception.h>
#include <llvm/ADT/STLExtras.h>

namespace gravure {
namespace {

using Memory = std::shared_ptr<const EntryMemory>;

const Memory& ensure(Memory& memory, const Entry& entry, Partitions partitions) {
  if (!memory) memory = std::make_shared<const EntryMemory>(entry, partitions);
  return memory;
}

bool hasPartitions(const EntryMemory& entered) { return !entered.numbering->entered().empty(); }

}  // namespace

KeptAnalyses::OfEntry& KeptAnalyses::keptOf(const Entry& entry, OfEntry& scratch) const {
  if (!keeps_) return scratch;
  const Graph* graph = entry.graph.get();
  const auto known =
      llvm::find_if(entries_, [&](const OfEntry& each) { return each.graph == graph; });
  if (known != entries_.end()) return *known;
  OfEntry& added = entries_.emplace_back();
  added.graph = graph;
  return added;
}

/// Where nothing is kept, only what is asked for is worth building.
std::shared_ptr<const EntryMemory> KeptAnalyses::memoryOf(const Entry& entry) const {
  OfEntry scratch;
  OfEntry& kept = keptOf(entry, scratch);
  if (kept.asNodes || !keeps_) return ensure(kept.asNodes, entry, Partitions::AsNodes);
  // Before there are partitions, both numberings of an entry are one.
  const Memory& entered = ensure(kept.aliased, entry, Partitions::Entered);
  if (!hasPartitions(*entered)) return kept.asNodes = entered;
  return ensure(kept.asNodes, entry, Partitions::AsNodes);
}

std::shared_ptr<const EntryMemory> KeptAnalyses::enteredMemoryOf(const Entry& entry,
                                                                 StagedOperands staged) const {
  OfEntry scratch;
  OfEntry& kept = keptOf(entry, scratch);
  const Memory& aliased = ensure(kept.aliased, entry, Partitions::Entered);
  if (staged == StagedOperands::Aliased || !hasPartitions(*aliased)) return aliased;
  if (!kept.copied) {
    kept.copied = std::make_shared<const EntryMemory>(aliased->numbering, StagedOperands::Copied);
  }
  return kept.copied;
}

std::shared_ptr<const Dependences> KeptAnalyses::dependencesOf(const Entry& entry) const {
  OfEntry scratch;
  OfEntry& kept = keptOf(entry, scratch);
  if (!kept.dependences)
    kept.dependences = std::make_shared<const Dependences>(entry, memoryOf(entry));
  return kept.dependences;
}

std::shared_ptr<const Timeline> KeptAnalyses::timelineOf(const Program& program,
                                                         StagedOperands staged) const {
  std::shared_ptr<const Timeline> scratch;
  auto& kept = keeps_ ? timelines_[static_cast<size_t>(staged)] : scratch;
  if (!kept) {
    std::vector<Memory> memories;
    for (const Entry& entry : program.entries) memories.push_back(enteredMemoryOf(entry, staged));
    kept = std::make_shared<const Timeline>(Timeline::build(program, memories));
  }
  return kept;
}

void KeptAnalyses::forget() {
  entries_.clear();
  timelines_ = {};
}

void KeptAnalyses::forget(const Entry& entry) {
  llvm::erase_if(entries_, [&](const OfEntry& each) { return each.graph == entry.graph.get(); });
  timelines_ = {};
}

void KeptAnalyses::forgetCopies() {
  for (OfEntry& each : entries_) each.copied = nullptr;
  timelines_[static_cast<size_t>(StagedOperands::Copied)] = nullptr;
}

void KeptAnalyses::check(const Program& program) const {
  for (const Entry& entry : program.entries) {
    const auto known = llvm::find_if(
        entries_, [&](const OfEntry& each) { return each.graph == entry.graph.get(); });
    if (known == entries_.end()) continue;
    const auto holds = [&](const Memory& memory, Partitions partitions, StagedOperands staged) {
      if (!memory) return;
      const EntryMemory now(entry, partitions, staged);
      TORCH_INTERNAL_ASSERT(
          *memory->numbering == *now.numbering && memory->accesses.isAsOf(now.accesses), "entry '",
          entry.name, "' is not what it was when its memory was looked at");
    };
    holds(known->asNodes, Partitions::AsNodes, StagedOperands::Aliased);
    holds(known->aliased, Partitions::Entered, StagedOperands::Aliased);
    holds(known->copied, Partitions::Entered, StagedOperands::Copied);
  }
}

}  // namespace gravure
