#include "runtime/layout/result_ownership.h"

#include "ir/facts/value_types.h"

#include <llvm/ADT/DenseMap.h>
#include <llvm/ADT/DenseSet.h>
#include <llvm/ADT/StringSet.h>

#include <algorithm>

namespace gravure {
namespace {

/// Where the values that Own instructions move come from, by the slot they move to.
class OwnedFrom {
 public:
  explicit OwnedFrom(EntryCode& code) {
    for (Own& own : code.owns) {
      for (size_t i = 0; i < own.to.size(); ++i) at_[own.to[i]] = {&own, i};
    }
  }
  /// Where `slot` lies before it is handed over.
  Slot arenaSlot(Slot slot) const {
    const auto at = at_.find(slot);
    return at == at_.end() ? slot : at->second.first->from[at->second.second];
  }
  void set(Slot slot, Ownership ownership) const {
    const auto at = at_.find(slot);
    if (at != at_.end()) at->second.first->ownership[at->second.second] = ownership;
  }

 private:
  llvm::DenseMap<Slot, std::pair<Own*, size_t>> at_;
};

/// True if the step allocates output `output` with a shape that is known in advance.
bool isPlanned(const Timeline& timeline, const EntryCode& code, const OwnedFrom& owned,
               size_t output) {
  const Value* value = code.entry->graph->outputs()[output];
  const int64_t storage = code.storages[owned.arenaSlot(code.outputs[output])];
  return isTensorValue(value) && hasStaticShape(value) && storage >= 0 &&
         timeline.storages()[storage].origin == StorageOrigin::Fresh;
}

Ownership wished(OutputRole role, ResultPolicy policy, bool large) {
  switch (role) {
    case OutputRole::Mutation:
    case OutputRole::Alias:
    case OutputRole::Saved: return Ownership::Copied;
    case OutputRole::Gradient:
      if (policy == ResultPolicy::Owned) return Ownership::Lent;
      [[fallthrough]];
    case OutputRole::Output:
      if (policy == ResultPolicy::Owned && large) return Ownership::Lent;
      [[fallthrough]];
    default: return policy == ResultPolicy::Static ? Ownership::Static : Ownership::Copied;
  }
}

}  // namespace

void chooseOwnership(const Program& program, const Timeline& timeline, ResultPolicy policy,
                     std::vector<EntryCode>& codes) {
  llvm::StringSet<> read;  // saved values that an entry of the program reads
  for (const Entry& entry : program.entries) {
    for (const InputInfo& input : entry.inputs) {
      if (input.role == InputRole::Saved) read.insert(input.name);
    }
  }
  for (EntryCode& code : codes) {
    code.ownership.assign(code.outputs.size(), Ownership::Copied);
    for (Own& own : code.owns) own.ownership.assign(own.from.size(), Ownership::Copied);
    const OwnedFrom owned(code);
    llvm::DenseSet<Slot> copied;
    llvm::DenseMap<int64_t, int> sharers;  // autograd adds to gradients in place
    for (Slot slot : code.outputs) ++sharers[code.storages[owned.arenaSlot(slot)]];
    for (size_t o = 0; o < code.outputs.size() && o < code.entry->outputs.size(); ++o) {
      const OutputInfo& info = code.entry->outputs[o];
      if (info.role == OutputRole::Saved && read.contains(info.name)) {
        code.ownership[o] = Ownership::Saved;
      } else if (isPlanned(timeline, code, owned, o)) {
        const auto bytes = storageBytes(*code.entry->graph->outputs()[o]->type());
        code.ownership[o] = wished(info.role, policy, bytes && *bytes >= kLentFrom);
        const int64_t storage = code.storages[owned.arenaSlot(code.outputs[o])];
        if (code.ownership[o] == Ownership::Lent && sharers[storage] > 1)
          code.ownership[o] = Ownership::Copied;
      }
      if (code.ownership[o] == Ownership::Copied) copied.insert(code.outputs[o]);
    }
    for (size_t o = 0; o < code.outputs.size(); ++o) {
      if (copied.contains(code.outputs[o])) code.ownership[o] = Ownership::Copied;
      owned.set(code.outputs[o], code.ownership[o]);
    }
  }
}

std::vector<Exclusive> reservedStorages(const Timeline& timeline, std::vector<EntryCode>& codes,
                                        llvm::function_ref<bool(size_t, size_t)> droppedInTime,
                                        llvm::function_ref<bool(size_t, size_t)> droppedInEntry) {
  std::vector<Exclusive> reserved(timeline.storages().size(), Exclusive::None);
  for (size_t e = 0; e < codes.size(); ++e) {
    EntryCode& code = codes[e];
    const OwnedFrom owned(code);
    for (size_t o = 0; o < code.outputs.size(); ++o) {
      const Ownership ownership = code.ownership[o];
      if (ownership != Ownership::Lent && ownership != Ownership::Static) continue;
      const bool dropped = ownership == Ownership::Lent && droppedInTime(e, o);
      Exclusive& storage = reserved[code.storages[owned.arenaSlot(code.outputs[o])]];
      const Exclusive inTime = droppedInEntry(e, o) ? Exclusive::InEntry : Exclusive::FromBirth;
      storage = std::max(storage, dropped ? inTime : Exclusive::Always);
    }
  }
  return reserved;
}

void copyFromNowOn(EntryCode& code, size_t output) {
  for (size_t o = 0; o < code.outputs.size(); ++o) {
    if (code.outputs[o] == code.outputs[output]) code.ownership[o] = Ownership::Copied;
  }
  OwnedFrom(code).set(code.outputs[output], Ownership::Copied);
}

}  // namespace gravure
