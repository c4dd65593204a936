#include "runtime/layout/handing.h"

#include "ir/facts/op_facts.h"

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
  void set(Slot slot, Handing handing) const {
    const auto at = at_.find(slot);
    if (at != at_.end()) at->second.first->handing[at->second.second] = handing;
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

Handing wished(OutputRole role, ResultPolicy policy) {
  switch (role) {
    case OutputRole::Mutation:
    case OutputRole::Alias:
    case OutputRole::Saved: return Handing::Copied;
    case OutputRole::Gradient:
      if (policy == ResultPolicy::Owned) return Handing::Lent;
      [[fallthrough]];
    default: return policy == ResultPolicy::Static ? Handing::Static : Handing::Copied;
  }
}

}  // namespace

void chooseHanding(const Program& program, const Timeline& timeline, ResultPolicy policy,
                   std::vector<EntryCode>& codes) {
  llvm::StringSet<> read;  // saved values that an entry of the program reads
  for (const Entry& entry : program.entries) {
    for (const InputInfo& input : entry.inputs) {
      if (input.role == InputRole::Saved) read.insert(input.name);
    }
  }
  for (EntryCode& code : codes) {
    code.handing.assign(code.outputs.size(), Handing::Copied);
    for (Own& own : code.owns) own.handing.assign(own.from.size(), Handing::Copied);
    const OwnedFrom owned(code);
    llvm::DenseSet<Slot> copied;
    llvm::DenseMap<int64_t, int> sharers;  // autograd adds to gradients in place
    for (Slot slot : code.outputs) ++sharers[code.storages[owned.arenaSlot(slot)]];
    for (size_t o = 0; o < code.outputs.size() && o < code.entry->outputs.size(); ++o) {
      const OutputInfo& info = code.entry->outputs[o];
      if (info.role == OutputRole::Saved && read.contains(info.name)) {
        code.handing[o] = Handing::Saved;
      } else if (isPlanned(timeline, code, owned, o)) {
        code.handing[o] = wished(info.role, policy);
        const int64_t storage = code.storages[owned.arenaSlot(code.outputs[o])];
        if (code.handing[o] == Handing::Lent && sharers[storage] > 1)
          code.handing[o] = Handing::Copied;
      }
      if (code.handing[o] == Handing::Copied) copied.insert(code.outputs[o]);
    }
    for (size_t o = 0; o < code.outputs.size(); ++o) {
      if (copied.contains(code.outputs[o])) code.handing[o] = Handing::Copied;
      owned.set(code.outputs[o], code.handing[o]);
    }
  }
}

std::vector<Reservation> reservedStorages(const Timeline& timeline, std::vector<EntryCode>& codes,
                                          llvm::function_ref<bool(size_t, size_t)> droppedInTime) {
  std::vector<Reservation> reserved(timeline.storages().size(), Reservation::None);
  for (size_t e = 0; e < codes.size(); ++e) {
    EntryCode& code = codes[e];
    const OwnedFrom owned(code);
    for (size_t o = 0; o < code.outputs.size(); ++o) {
      const Handing handing = code.handing[o];
      if (handing != Handing::Lent && handing != Handing::Static) continue;
      const bool dropped = handing == Handing::Lent && droppedInTime(e, o);
      Reservation& storage = reserved[code.storages[owned.arenaSlot(code.outputs[o])]];
      storage = std::max(storage, dropped ? Reservation::FromBirth : Reservation::Always);
    }
  }
  return reserved;
}

void copyFromNowOn(EntryCode& code, size_t output) {
  for (size_t o = 0; o < code.outputs.size(); ++o) {
    if (code.outputs[o] == code.outputs[output]) code.handing[o] = Handing::Copied;
  }
  OwnedFrom(code).set(code.outputs[output], Handing::Copied);
}

}  // namespace gravure
