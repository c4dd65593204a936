#include "passes/analysis/sharing.h"

#include "ir/memory/entry_memory.h"

#include <llvm/ADT/STLExtras.h>
#include <llvm/ADT/StringMap.h>

#include <algorithm>

namespace gravure {
namespace {

/// Calls `visit(now, before)` for the ports that two states of an entry have in common: passes add some
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

int32_t Sharing::leaderOf(const EntryPorts& ports, const Value* value) {
  const int32_t storage = ports.memory->accesses.storageOf(value);
  return storage < 0 ? -1 : static_cast<int32_t>(ports.joined.findLeader(storage));
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
  EntryPorts& ports = entries_.emplace_back();
  ports.name = entry.name;
  ports.graph = entry.graph.get();
  ports.memory = std::move(memory);
  const StorageAccesses& accesses = ports.memory->accesses;
  ports.joined.grow(accesses.storageCount());
  addPorts(entry, ports);
  // What is written here and came in: writes to what the entry itself makes are over when it ends.
  for (const auto& [storage, cls] : ports.classOfLeader) {
    if (accesses.isExternal(storage) && accesses.isWrittenByNode(storage)) isPrivate_[cls] = false;
  }
}

void Sharing::addPorts(const Entry& entry, EntryPorts& ports) {
  const auto add = [&](const Value* value, bool isSaved) {
    const int32_t storage = leaderOf(ports, value);
    if (storage < 0) return -1;
    const auto [known, isNew] = ports.classOfLeader.try_emplace(storage, -1);
    if (isNew) known->second = addClass();
    if (!isSaved) isPrivate_[known->second] = false;
    return known->second;
  };
  ports.inputs = entry.inputs;
  ports.outputs = entry.outputs;
  for (size_t i = 0; i < entry.inputs.size(); ++i) {
    const bool isSaved = entry.inputs[i].role == InputRole::Saved;
    ports.inputClass.push_back(add(entry.graph->inputs()[i], isSaved));
  }
  for (size_t o = 0; o < entry.outputs.size(); ++o) {
    const bool isSaved = entry.outputs[o].role == OutputRole::Saved;
    ports.outputClass.push_back(add(entry.graph->outputs()[o], isSaved));
  }
}

/// What is saved and not taken, or taken and not saved, is the caller's.
void Sharing::joinSaved() {
  struct Saved {
    int32_t cls = -1;
    bool taken = false;
  };
  llvm::StringMap<Saved> saved;
  for (EntryPorts& ports : entries_) {
    for (size_t i = 0; i < ports.inputs.size(); ++i) {
      if (ports.inputs[i].role != InputRole::Saved || ports.inputClass[i] < 0) continue;
      const auto from = saved.find(ports.inputs[i].name);
      if (from == saved.end()) {
        isPrivate_[classOf(ports.inputClass[i])] = false;
      } else {
        from->second.taken = true;
        uniteClasses(from->second.cls, ports.inputClass[i]);
      }
    }
    for (size_t o = 0; o < ports.outputs.size(); ++o) {
      if (ports.outputs[o].role != OutputRole::Saved || ports.outputClass[o] < 0) continue;
      saved.try_emplace(ports.outputs[o].name, Saved{ports.outputClass[o], false});
    }
  }
  for (const auto& each : saved) {
    if (!each.second.taken) isPrivate_[classOf(each.second.cls)] = false;
  }
}

Sharing::EntryPorts& Sharing::entryOf(const Value* value) {
  const Graph* graph = value->node()->owningGraph();
  const auto found =
      llvm::find_if(entries_, [&](const EntryPorts& ports) { return ports.graph == graph; });
  TORCH_INTERNAL_ASSERT(found != entries_.end(), "%", value->debugName(), " is of no entry");
  return *found;
}

bool Sharing::mayJoin(llvm::ArrayRef<const Value*> values) {
  EntryPorts& ports = entryOf(values.front());
  int32_t first = -1;
  bool several = false, allPrivate = true;
  for (const Value* value : values) {
    const auto known = ports.classOfLeader.find(leaderOf(ports, value));
    if (known == ports.classOfLeader.end()) continue;
    const int32_t cls = classOf(known->second);
    several |= first >= 0 && first != cls;
    allPrivate &= isPrivate_[cls];
    first = cls;
  }
  return !several || allPrivate;
}

void Sharing::join(llvm::ArrayRef<const Value*> values) {
  EntryPorts& ports = entryOf(values.front());
  int32_t all = -1;  // the storage that leads those so far
  int32_t cls = -1;
  for (const Value* value : values) {
    const int32_t storage = leaderOf(ports, value);
    if (storage < 0) continue;
    if (const auto known = ports.classOfLeader.find(storage); known != ports.classOfLeader.end())
      cls = cls < 0 ? classOf(known->second) : uniteClasses(cls, known->second);
    all = all < 0 ? storage : static_cast<int32_t>(ports.joined.join(all, storage));
  }
  if (cls >= 0) ports.classOfLeader[all] = cls;
}

std::string Sharing::portText(size_t entry, bool isInput, size_t index) const {
  const EntryPorts& ports = entries_[entry];
  const std::string role =
      isInput ? roleName(ports.inputs[index].role) : roleName(ports.outputs[index].role);
  const std::string& name = isInput ? ports.inputs[index].name : ports.outputs[index].name;
  return std::string(isInput ? "input " : "result ") + std::to_string(index) + " (" + role +
         (name.empty() ? "" : " \"" + name + "\"") + ") of " + ports.name;
}

std::string Sharing::breaksRule(const Sharing& before) const {
  struct Known {
    int32_t before = -1;
    size_t entry = 0;
    bool isInput = false;
    size_t index = 0;
  };
  llvm::DenseMap<int32_t, Known> known;  // by class: the first port of it
  std::string broken;
  const auto isPrivate = [&](int32_t cls) { return before.isPrivate_[cls]; };
  const auto look = [&](int32_t now, int32_t earlier, size_t entry, bool isInput, size_t index) {
    if (!broken.empty() || now < 0 || earlier < 0) return;
    now = classOf(now), earlier = before.classOf(earlier);
    const Known first = known.try_emplace(now, Known{earlier, entry, isInput, index}).first->second;
    if (first.before == earlier) return;
    if (isPrivate_[now] && isPrivate(first.before) && isPrivate(earlier)) return;
    broken = portText(first.entry, first.isInput, first.index) + " and " +
             portText(entry, isInput, index) + " share memory, and did not before";
  };
  for (size_t e = 0; e < entries_.size() && e < before.entries_.size(); ++e) {
    const EntryPorts &mine = entries_[e], &theirs = before.entries_[e];
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
