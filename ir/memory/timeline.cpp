#include "ir/memory/timeline.h"

#include "ir/core/cudagraph_ops.h"
#include "ir/facts/value_types.h"
#include "ir/memory/entry_memory.h"
#include "ir/memory/storage_lives.h"

#include <llvm/ADT/IntEqClasses.h>
#include <llvm/ADT/StringMap.h>

#include <algorithm>
#include <memory>

namespace gravure {

/// Puts the entries' storages and lives one behind the other, and joins what one saves and a later
/// one takes.
class TimelineBuilder {
 public:
  TimelineBuilder(const Program& program,
                  llvm::ArrayRef<std::shared_ptr<const EntryMemory>> memories, Timeline& out)
      : program_(program), out_(out) {
    entries_.reserve(program.entries.size());
    for (size_t e = 0; e < program.entries.size(); ++e) {
      const Numbering& numbering = *memories[e]->numbering;
      entries_.emplace_back(program.entries[e], *memories[e], nodeCount(), storages_);
      storages_ += memories[e]->accesses.storageCount();
      out_.nodes_.insert(out_.nodes_.end(), numbering.nodes().begin(), numbering.nodes().end());
      out_.ranges_.emplace_back(entries_.back().firstPosition, nodeCount());
    }
  }

  void build() {
    classes_.grow(storages_);
    for (size_t e = 0; e < entries_.size(); ++e) joinSaved(e);
    classes_.compress();
    makeStorages();
    for (size_t e = 0; e < entries_.size(); ++e) {
      addLives(e);
      noteOrigins(e);
      noteResults(e);
      noteValues(e);
    }
  }

 private:
  /// An entry, and where it begins among all.
  struct PlacedEntry {
    PlacedEntry(const Entry& entry, const EntryMemory& memory, int64_t firstPosition,
                int32_t firstStorage)
        : numbering(*memory.numbering), accesses(memory.accesses), firstPosition(firstPosition),
          firstStorage(firstStorage), isTaken(entry.graph->inputs().size()),
          isKept(entry.graph->outputs().size()) {}

    const Numbering& numbering;
    const StorageAccesses& accesses;
    int64_t firstPosition;
    int32_t firstStorage;
    std::vector<bool> isTaken;  // by input: it takes what an earlier entry saved
    std::vector<bool> isKept;   // by output: saved, and taken by a later entry
  };

  int64_t nodeCount() const { return static_cast<int64_t>(out_.nodes_.size()); }

  /// Saved inputs of entry `e` are the outputs of that name of an earlier entry.
  void joinSaved(size_t e) {
    const Entry& entry = program_.entries[e];
    PlacedEntry& placed = entries_[e];
    for (size_t i = 0; i < entry.inputs.size(); ++i) {
      if (entry.inputs[i].role != InputRole::Saved) continue;
      const auto from = saved_.find(entry.inputs[i].name);
      const int32_t storage = placed.accesses.storageOf(entry.graph->inputs()[i]);
      if (from == saved_.end() || storage < 0) continue;
      placed.isTaken[i] = true;
      classes_.join(from->second.storage, placed.firstStorage + storage);
      entries_[from->second.entry].isKept[from->second.output] = true;
    }
    for (size_t o = 0; o < entry.outputs.size(); ++o) {
      if (entry.outputs[o].role != OutputRole::Saved) continue;
      const int32_t storage = placed.accesses.storageOf(entry.graph->outputs()[o]);
      if (storage < 0) continue;
      saved_.try_emplace(entry.outputs[o].name, SavedOutput{placed.firstStorage + storage, e, o});
    }
  }

  /// Structural nodes alone have no schema, so few nodes are looked at.
  static bool isOwn(const Numbering& numbering, int32_t i) {
    return !numbering.facts(i).schema && numbering.node(i)->kind() == cg::own;
  }

  StorageLife& lifeOf(const PlacedEntry& placed, int32_t storage) {
    return out_.storages_[classes_[placed.firstStorage + storage]];
  }

  void makeStorages() {
    out_.storages_.resize(classes_.getNumClasses());
    for (const PlacedEntry& placed : entries_) {
      for (int32_t s = 0; s < placed.accesses.storageCount(); ++s) {
        StorageLife& life = lifeOf(placed, s);
        life.written |= placed.accesses.isWrittenByNode(s);
        if (life.first) continue;
        life.first = placed.accesses.firstOf(s);
        life.bytes = storageBytes(*life.first->type());
        life.begin = placed.firstPosition;
      }
    }
  }

  void addLives(size_t e) {
    const PlacedEntry& placed = entries_[e];
    const std::vector<Life> lives = livesInProgramOrder(placed.accesses);
    for (int32_t s = 0; s < placed.accesses.storageCount(); ++s) {
      StorageLife& life = lifeOf(placed, s);
      if (placed.accesses.isLeftOpen(s)) life.end = life.heldUntil = nodeCount();
      if (placed.accesses.isHeld(s))
        life.heldUntil = std::max(life.heldUntil, placed.firstPosition + placed.numbering.size());
      if (lives[s].isEmpty()) continue;
      // Of several that are one storage in a later entry, the first one begins it.
      const bool begins =
          placed.accesses.makerOf(s) >= 0 && placed.accesses.firstOf(s) == life.first;
      if (begins) life.begin = placed.firstPosition + lives[s].begin;
      life.end = std::max(life.end, placed.firstPosition + lives[s].end);
    }
  }

  void noteOrigins(size_t e) {
    const PlacedEntry& placed = entries_[e];
    const auto inputs = program_.entries[e].graph->inputs();
    for (size_t i = 0; i < inputs.size(); ++i) {
      const int32_t s = placed.accesses.storageOf(inputs[i]);
      if (s < 0 || placed.isTaken[i]) continue;
      StorageLife& life = lifeOf(placed, s);
      life.origin = StorageOrigin::External;
      life.end = std::max(life.end, placed.firstPosition + 1);
    }
    for (int32_t i = 0; i < placed.numbering.size(); ++i) {
      if (!isOwn(placed.numbering, i)) continue;
      for (const Value* output : placed.numbering.node(i)->outputs()) {
        const int32_t s = placed.accesses.storageOf(output);
        if (s >= 0) lifeOf(placed, s).origin = StorageOrigin::External;
      }
    }
  }

  /// A saved output that no entry takes is a result too.
  void noteResults(size_t e) {
    const PlacedEntry& placed = entries_[e];
    const auto outputs = program_.entries[e].graph->outputs();
    for (size_t o = 0; o < outputs.size(); ++o) {
      const int32_t s = placed.accesses.storageOf(outputs[o]);
      if (s >= 0 && !placed.isKept[o]) lifeOf(placed, s).result = true;
    }
  }

  void noteValues(size_t e) {
    const PlacedEntry& placed = entries_[e];
    const Numbering& numbering = placed.numbering;
    Timeline::EntryStorages& values = out_.storageOf_.emplace_back();
    values.graph = program_.entries[e].graph.get();
    values.storage.assign(numbering.valueBound(), -1);
    values.position.assign(numbering.valueBound(), -1);
    values.allocates.assign(numbering.valueBound(), false);
    for (int32_t t = 0; t < numbering.tensorCount(); ++t) {
      const int32_t value = numbering.valueOfTensor(t);
      values.storage[value] =
          static_cast<int32_t>(classes_[placed.firstStorage + placed.accesses.storageOf(value)]);
    }
    for (int32_t i = 0; i < numbering.size(); ++i) {
      const auto results = numbering.results(i);
      for (int32_t result : results) {
        values.allocates[result] = placed.accesses.storageOf(result) >= 0 &&
                                   !placed.accesses.isAlias(result) && !numbering.isNested(i) &&
                                   !isOwn(numbering, i);
      }
      if (results.empty()) {
        out_.positionOf_[numbering.node(i)] = placed.firstPosition + i;
      } else {
        values.position[results.front()] = static_cast<int32_t>(placed.firstPosition + i);
      }
    }
  }

  struct SavedOutput {
    int32_t storage;  // over all entries
    size_t entry, output;
  };

  const Program& program_;
  Timeline& out_;
  std::vector<PlacedEntry> entries_;
  int32_t storages_ = 0;        // of all entries
  llvm::IntEqClasses classes_;  // of these
  llvm::StringMap<SavedOutput> saved_;
};

Timeline Timeline::build(const Program& program, bool copiesStaged) {
  const auto staged = copiesStaged ? StagedOperands::Copied : StagedOperands::Aliased;
  std::vector<std::shared_ptr<const EntryMemory>> memories;
  for (const Entry& entry : program.entries) {
    memories.push_back(std::make_shared<const EntryMemory>(entry, Partitions::Entered, staged));
  }
  return build(program, memories);
}

Timeline Timeline::build(const Program& program,
                         llvm::ArrayRef<std::shared_ptr<const EntryMemory>> memories) {
  Timeline timeline;
  TimelineBuilder(program, memories, timeline).build();
  return timeline;
}

const Timeline::EntryStorages* Timeline::storagesOf(const Value* value) const {
  const Graph* graph = value->owningGraph();
  for (const EntryStorages& values : storageOf_) {
    if (values.graph == graph && value->unique() < values.storage.size()) return &values;
  }
  return nullptr;
}

int64_t Timeline::storageOf(const Value* value) const {
  const EntryStorages* values = storagesOf(value);
  return values ? values->storage[value->unique()] : -1;
}

bool Timeline::allocates(const Value* value) const {
  const EntryStorages* values = storagesOf(value);
  return values && values->allocates[value->unique()];
}

int64_t Timeline::positionOf(const Node* node) const {
  if (node->outputs().empty()) {
    const auto at = positionOf_.find(node);
    return at == positionOf_.end() ? -1 : at->second;
  }
  const size_t result = node->output(0)->unique();
  for (const EntryStorages& values : storageOf_) {
    if (values.graph == node->owningGraph() && result < values.position.size())
      return values.position[result];
  }
  return -1;
}

}  // namespace gravure
