#include "passes/analysis/sharing.h"

#include "ir/memory/entry_memory.h"

#include <llvm/ADT/STLExtras.h>
#include <llvm/ADT/StringMap.h>

#include <algorithm>

namespace gravure {
namespace {

/// Calls `visit(now, before)` for the places that two states of an entry have in common: passes add some
/// and take some away, and keep the others in order.
template <typename Info, typename Visit>
void forEachCommon(const std::vector<Info>& now, const std::vector<Info>& before, Visit&& visit) {
  size_t from = 0;
  for (size_t i = 0; i < now.size(); ++i) {
    size_t at = from;
    while (at < before.size() && !(before[at] == now[i])) ++at;
    if (at == before.size()) continue;
    visit(i, at);
    from = at + 1;
  }
}

}  // namespace

Sharing::Sharing(const Program& program, const KeptAnalyses& analyses) {
  entries_.reserve(program.entries.size());
  for (const Entry& entry : program.entries)
    addEntry(entry, analyses.enteredMemoryOf(entry, StagedOperands::Aliased));
  joinSaved();
}

int32_t Sharing::leaderOf(const EntryPlaces& places, const Value* value) {
  const int32_t storage = places.memory->accesses.storageOf(value);
  return storage < 0 ? -1 : static_cast<int32_t>(places.joined.findLeader(storage));
}

int32_t Sharing::addClass() {
  isPrivate_.push_back(true);
  classes_.grow(isPrivate_.size());
  return static_cast<int32_t>(isPrivate_.size()) - 1;
}

int32_t Sharing::uniteClasses(int32_t a, int32_t b) {
  a = classOf(a), b = classOf(b);
  const auto joined = static_cast<int32_t>(classes_.join(a, b));
  isPrivate_[joined] = isPrivate_[a] && isPrivate_[b];
  return joined;
}

void Sharing::addEntry(const Entry& entry, std::shared_ptr<const EntryMemory> memory) {
  EntryPlaces& places = entries_.emplace_back();
  places.name = entry.name;
  places.graph = entry.graph.get();
  places.memory = std::move(memory);
  const StorageAccesses& accesses = places.memory->accesses;
  places.joined.grow(accesses.storageCount());
  addPlaces(entry, places);
  // What is written here and came in: writes to what the entry itself makes are over when it ends.
  for (const auto& [storage, number] : places.classOfLeader) {
    if (accesses.isExternal(storage) && accesses.isWrittenByNode(storage))
      isPrivate_[number] = false;
  }
}

void Sharing::addPlaces(const Entry& entry, EntryPlaces& places) {
  const auto add = [&](const Value* value, bool isSaved) {
    const int32_t storage = leaderOf(places, value);
    if (storage < 0) return -1;
    const auto [known, isNew] = places.classOfLeader.try_emplace(storage, -1);
    if (isNew) known->second = addClass();
    if (!isSaved) isPrivate_[known->second] = false;
    return known->second;
  };
  places.inputs = entry.inputs;
  places.outputs = entry.outputs;
  for (size_t i = 0; i < entry.inputs.size(); ++i) {
    const bool isSaved = entry.inputs[i].role == InputRole::Saved;
    places.inputClass.push_back(add(entry.graph->inputs()[i], isSaved));
  }
  for (size_t o = 0; o < entry.outputs.size(); ++o) {
    const bool isSaved = entry.outputs[o].role == OutputRole::Saved;
    places.outputClass.push_back(add(entry.graph->outputs()[o], isSaved));
  }
}

/// What is saved and not taken, or taken and not saved, is the caller's.
void Sharing::joinSaved() {
  struct Saved {
    int32_t number = -1;
    bool taken = false;
  };
  llvm::StringMap<Saved> saved;
  for (EntryPlaces& places : entries_) {
    for (size_t i = 0; i < places.inputs.size(); ++i) {
      if (places.inputs[i].role != InputRole::Saved || places.inputClass[i] < 0) continue;
      const auto from = saved.find(places.inputs[i].name);
      if (from == saved.end()) {
        isPrivate_[classOf(places.inputClass[i])] = false;
      } else {
        from->second.taken = true;
        uniteClasses(from->second.number, places.inputClass[i]);
      }
    }
    for (size_t o = 0; o < places.outputs.size(); ++o) {
      if (places.outputs[o].role != OutputRole::Saved || places.outputClass[o] < 0) continue;
      saved.try_emplace(places.outputs[o].name, Saved{places.outputClass[o], false});
    }
  }
  for (const auto& each : saved) {
    if (!each.second.taken) isPrivate_[classOf(each.second.number)] = false;
  }
}

Sharing::EntryPlaces& Sharing::entryOf(const Value* value) {
  const Graph* graph = value->node()->owningGraph();
  const auto found =
      llvm::find_if(entries_, [&](const EntryPlaces& places) { return places.graph == graph; });
  TORCH_INTERNAL_ASSERT(found != entries_.end(), "%", value->debugName(), " is of no entry");
  return *found;
}

bool Sharing::mayJoin(llvm::ArrayRef<const Value*> values) {
  EntryPlaces& places = entryOf(values.front());
  int32_t first = -1;
  bool several = false, allPrivate = true;
  for (const Value* value : values) {
    const auto known = places.classOfLeader.find(leaderOf(places, value));
    if (known == places.classOfLeader.end()) continue;
    const int32_t number = classOf(known->second);
    several |= first >= 0 && first != number;
    allPrivate &= isPrivate_[number];
    first = number;
  }
  return !several || allPrivate;
}

void Sharing::join(llvm::ArrayRef<const Value*> values) {
  EntryPlaces& places = entryOf(values.front());
  int32_t all = -1;  // the storage that leads those so far
  int32_t number = -1;
  for (const Value* value : values) {
    const int32_t storage = leaderOf(places, value);
    if (storage < 0) continue;
    if (const auto known = places.classOfLeader.find(storage); known != places.classOfLeader.end())
      number = number < 0 ? classOf(known->second) : uniteClasses(number, known->second);
    all = all < 0 ? storage : static_cast<int32_t>(places.joined.join(all, storage));
  }
  if (number >= 0) places.classOfLeader[all] = number;
}

std::string Sharing::placeText(size_t entry, bool isInput, size_t number) const {
  const EntryPlaces& places = entries_[entry];
  const std::string role =
      isInput ? roleName(places.inputs[number].role) : roleName(places.outputs[number].role);
  const std::string& name = isInput ? places.inputs[number].name : places.outputs[number].name;
  return std::string(isInput ? "input " : "result ") + std::to_string(number) + " (" + role +
         (name.empty() ? "" : " \"" + name + "\"") + ") of " + places.name;
}

std::string Sharing::breaksRule(const Sharing& before) const {
  struct Known {
    int32_t before = -1;
    size_t entry = 0;
    bool isInput = false;
    size_t number = 0;
  };
  llvm::DenseMap<int32_t, Known> known;  // by class: the first place of it
  std::string broken;
  const auto isPrivate = [&](int32_t number) { return before.isPrivate_[number]; };
  const auto look = [&](int32_t now, int32_t earlier, size_t entry, bool isInput, size_t number) {
    if (!broken.empty() || now < 0 || earlier < 0) return;
    now = classOf(now), earlier = before.classOf(earlier);
    const Known first =
        known.try_emplace(now, Known{earlier, entry, isInput, number}).first->second;
    if (first.before == earlier) return;
    if (isPrivate_[now] && isPrivate(first.before) && isPrivate(earlier)) return;
    broken = placeText(first.entry, first.isInput, first.number) + " and " +
             placeText(entry, isInput, number) + " share memory, and did not before";
  };
  for (size_t e = 0; e < entries_.size() && e < before.entries_.size(); ++e) {
    const EntryPlaces &mine = entries_[e], &theirs = before.entries_[e];
    forEachCommon(mine.inputs, theirs.inputs, [&](size_t i, size_t at) {
      look(mine.inputClass[i], theirs.inputClass[at], e, true, i);
    });
    forEachCommon(mine.outputs, theirs.outputs, [&](size_t o, size_t at) {
      look(mine.outputClass[o], theirs.outputClass[at], e, false, o);
    });
  }
  return broken;
}

}  // namespace gravure
