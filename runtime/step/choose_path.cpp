#include "runtime/layout/result_ownership.h"
#include "runtime/results/address_remainder.h"
#include "runtime/step/runtime_impl.h"

#include <ATen/Parallel.h>

#include <llvm/ADT/STLExtras.h>

#include <algorithm>
#include <bit>

namespace gravure {

namespace {

/// By input that is not staged; empty for others.
std::vector<std::vector<int64_t>> keptStrides(const EntryState& entry,
                                              const std::vector<c10::IValue>& inputs) {
  std::vector<std::vector<int64_t>> strides(inputs.size());
  const auto& infos = entry.code->entry->inputs;
  for (size_t i = 0; i < inputs.size() && i < infos.size(); ++i) {
    const InputRole role = infos[i].role;
    const bool asGiven = isKeptByCaller(role) || role == InputRole::Saved;
    if (asGiven && inputs[i].isTensor() && inputs[i].toTensor().defined() &&
        inputs[i].toTensor().layout() == c10::kStrided)
      strides[i] = inputs[i].toTensor().strides().vec();
  }
  return strides;
}

}  // namespace

/// Against the program alone.
void Runtime::Impl::checkInputs(const EntryState& entry, const std::vector<c10::IValue>& inputs) {
  for (size_t i = 0; i < inputs.size(); ++i) entry.inputs.checks[i].check(inputs[i]);
}

/// Throws InputsShared where the program is not for these inputs.
void Runtime::Impl::checkMemory(const EntryState& entry,
                                const std::vector<c10::IValue>& inputs) const {
  if (!options_.refuseShared) return;
  const std::string why = sharedInputs(entry, inputs);
  if (!why.empty()) throw InputsShared(why);
}

/// Which inputs share memory that the entry writes, in words; "" where none do.
std::string Runtime::Impl::sharedInputs(const EntryState& entry,
                                        const std::vector<c10::IValue>& inputs) {
  const auto shared = findShared(inputs, entry.code->written);
  if (!shared) return "";
  const Entry& of = *entry.code->entry;
  return inputName(of, shared->written) + " and " + inputName(of, shared->other) +
         " share memory, and one of them is written: the program is for tensors with memory of "
         "their own; give one of them its own (`clone()`)";
}

StepPath Runtime::Impl::choosePath(EntryState& entry, const std::vector<c10::IValue>& inputs,
                                   bool uncaptured) {
  StepPath path;
  const bool chosen = !uncaptured && !callerCaptures_ && sealedPath(entry, inputs, path);
  if (chosen) return path;
  checkMemory(entry, inputs);
  return unsealedPath(entry, inputs, uncaptured);
}

/// False, and nothing is otherwise than before, where no seal holds, or a replay would write over what
/// somebody holds: the slow way finds out what becomes of the step, and says so.
bool Runtime::Impl::sealedPath(EntryState& entry, const std::vector<c10::IValue>& inputs,
                               StepPath& path) {
  const Seal* seal = entry.seals.find(inputs);
  return seal && enterSealed(entry, *seal, inputs, path);
}

/// `seal` holds. False as sealedPath().
bool Runtime::Impl::enterSealed(EntryState& entry, const Seal& seal,
                                const std::vector<c10::IValue>& inputs, StepPath& path) {
  if (layoutWanted_ || at::get_num_threads() != threads_ || hasLateEntry()) return false;
  if (!entry.settings || *entry.settings != settings_) return false;
  const auto known = seal.readsLent();
  const bool lent = known ? *known : givenLentValues(entry, inputs);
  const bool free = lent ? !lentOverwritten_ : loans_->outstanding() == 0;
  if (!free || !producersAgree(entry, lent) || seal.resultsHeld()) return false;
  if (!entry.inputs.moving->empty() && entry.inputs.moving->firstUncopyable(inputs) >= 0)
    return false;
  if (&seal != entry.seals.current() && !takeUp(entry, seal)) return false;
  constexpr int64_t kNow = 64;  // and then memory of others is looked at
  if (entry.seals.count() > 1 && entry.inputs.runs % kNow == 0) entry.seals.dropGone();
  entry.inputs.held();
  entry.results.heldSteps = 0;
  entry.otherSettings.reset();
  enterArena(entry, lent, &seal, path);
  return true;
}

StepPath Runtime::Impl::unsealedPath(EntryState& entry, const std::vector<c10::IValue>& inputs,
                                     bool uncaptured) {
  if (callerCaptures_) {
    checkInputs(entry, inputs);
    checkForCaller(entry, inputs);
    return StepPath::plain();
  }
  if (!layout_ || isPartial()) {
    watchResults(entry);
    if (!entry.planned) noteUnread(entry);
    if (!uncaptured) followOthers();
  }
  if (uncaptured || options_.uncaptured || stats_.steps < arenaRetryAt_) {
    checkInputs(entry, inputs);
    checkLentValues(entry, givenLentValues(entry, inputs));
    return StepPath::plain();
  }
  if (layoutWanted_ && layout_ && loans_->outstanding() == 0)
    planForNewLayout("inputs are laid out otherwise than in the warm-up");
  if (!entry.warmUp.settled) {
    checkInputs(entry, inputs);
    entry.inputs.strides = keptStrides(entry, inputs);
    StepPath path;
    path.kind = StepPath::Kind::Recorded;
    return path;
  }
  std::string why;
  // A backward cannot be served before its forward was; by the next one, what this one returns is seen to be
  // dropped, or not. Each try empties PyTorch's cache, so they become rare.
  if (entry.producers.empty() && mayPlan() && !(why = plan(entry)).empty())
    arenaRetryAt_ = 2 * stats_.steps + 16;
  if (!layout_ || !entry.planned) {
    checkInputs(entry, inputs);
    return StepPath::plain(std::move(why));
  }
  return servedPath(entry, inputs);
}

/// Says once why a step runs uncaptured, and returns it.
std::string Runtime::Impl::missed(const std::string& key, const std::string& name,
                                  std::string message) {
  once_.missedAs(key, name, nullptr, message);
  return message;
}

/// A step in a graph of the caller's: its memory must be that graph's, which replays it after our next
/// steps.
void Runtime::Impl::checkForCaller(const EntryState& entry,
                                   const std::vector<c10::IValue>& inputs) {
  const auto& infos = entry.code->entry->inputs;
  for (size_t i = 0; i < inputs.size() && i < infos.size(); ++i) {
    const bool lent = infos[i].role == InputRole::Saved && inputs[i].isTensor() &&
                      (isLent(inputs[i].toTensor()) || inSlab(inputs[i].toTensor(), slab_.get()));
    TORCH_CHECK(
        !lent, "entry '", entry.code->entry->name,
        "' is run while its stream is being captured, on values that a step outside of that "
        "capture saved: later steps write over them, and the graph would read that; run the "
        "forward in the same capture, too");
  }
  once_.missedAs(entry.code->entry->name, "caller-captures", nullptr,
                 "entry '" + entry.code->entry->name +
                     "' ran uncaptured, because the caller captures its stream: it is part of that "
                     "graph, in that graph's memory");
}

StepPath Runtime::Impl::servedPath(EntryState& entry, const std::vector<c10::IValue>& inputs) {
  const bool lent = givenLentValues(entry, inputs);
  if (!producersAgree(entry, lent)) {
    checkInputs(entry, inputs);
    return StepPath::plain();
  }
  std::string why = settingsDiffer(entry);
  if (!why.empty()) {
    checkInputs(entry, inputs);
    return StepPath::plain(std::move(why));
  }
  why = inputsDiffer(entry, inputs);
  if (why.empty()) why = laidOtherwise(entry, inputs);
  if (why.empty()) why = liesOtherwise(entry, inputs);
  if (!why.empty()) return StepPath::plain(std::move(why));
  if (at::get_num_threads() != threads_) {
    const std::string threads =
        "the number of threads differs from that of the warm-up, and kernels allocate by it";
    why = missed("threads", "guard-failed", threads + "; this step ran uncaptured");
    ranUncaptured(entry, threads, "call torch.set_num_threads() once, before the first step");
    return StepPath::plain(std::move(why));
  }
  checkLentValues(entry, lent);
  if (loans_->outstanding() > 0 && !lent) {
    why = missed(entry.code->entry->name, "saved-values-held",
                 "entry '" + entry.code->entry->name +
                     "' ran uncaptured while saved values of an earlier step are held: their "
                     "memory may not be reused yet");
    ranUncaptured(entry, "saved values of an earlier step are held",
                  "run its backward, or drop what it returned, before the next step; a forward "
                  "that needs no backward runs under torch.no_grad()");
    return StepPath::plain(std::move(why));
  }
  if (resultsHeld(entry)) return StepPath::plain("a result of an earlier step is still held");
  StepPath path;
  enterArena(entry, lent, /*seal=*/nullptr, path);
  return path;
}

/// Makes `path` a served one, with the arena's memory, unless there is none for it now. `lent`: the step
/// reads saved values in it.
void Runtime::Impl::enterArena(EntryState& entry, bool lent, const Seal* seal, StepPath& path) {
  std::string why;
  const auto number = static_cast<size_t>(&entry - entries_.data());
  if (!slab_->enter(number, why)) {
    TORCH_CHECK(!options_.requireCapture, "no memory for the arena: ", why);
    path.why = missed(
        "enter", "no-arena",
        "no memory for the arena of " + std::to_string(slab_->bytes()) +
            " bytes, which other programs of the device use or which was given back: " + why +
            "; this step ran uncaptured");
    return;
  }
  path.kind = StepPath::Kind::Served;
  path.arena.reset(slab_.get());
  path.overwritesLent = lent;
  path.seal = seal;
  if (device_->poisons() && slab_->mayHaveChanged()) {
    for (const Extent& used : layout_->used[number])
      device_->poison(slab_->base() + used.begin, used.end - used.begin);
  }
  entry.uncapturedRuns <<= 1;
}

/// Before `begins` runs: notes which results of the entries behind it somebody holds, and which outputs of
/// its own.
void Runtime::Impl::watchResults(const EntryState& begins) {
  EntryState& own = entries_[&begins - entries_.data()];
  const std::vector<OutputInfo>& infos = own.code->entry->outputs;
  for (size_t o = 0; o < own.results.watches.size() && o < infos.size(); ++o) {
    if (infos[o].role == OutputRole::Output) own.results.watches[o].nextStepBegins();
  }
  for (EntryState& entry : entries_) {
    if (&entry >= &begins) break;
    for (ResultWatch& watch : entry.results.watches) watch.laterEntryBegins();
  }
  for (EntryState& entry : llvm::drop_begin(entries_, &begins - entries_.data() + 1)) {
    for (ResultWatch& watch : entry.results.watches) watch.nextStepBegins();
  }
}

/// True if a replay would write over a lent result that somebody holds: one of the entry's own, or one of
/// another entry's that was dropped in time when the arena was laid out (writesOver()). Such a result is
/// copied from now on; if it is held for many steps more, the arena is laid out anew, and the old one is left
/// to the holder.
bool Runtime::Impl::resultsHeld(EntryState& entry) {
  bool held = false, still = false;
  for (EntryState& lender : entries_) {
    for (size_t o = 0; o < lender.results.lent.size(); ++o) {
      if (lender.results.lent[o]->outstanding() == 0) continue;
      if (!writesOver(entry, lender, o)) continue;
      if (lender.code->ownership[o] != Ownership::Lent) {
        still = true;
        continue;
      }
      held = true;
      copyFromNowOn(*lender.code, o);
      lender.seals.breakAll();
      const OutputInfo& info = lender.code->entry->outputs[o];
      remarks_.add(RemarkKind::Missed, "runtime", "result-held",
                   std::string(roleName(info.role)) + " \"" + info.name + "\" of entry '" +
                       lender.code->entry->name +
                       "' was still held when its next step began: that step ran uncaptured, and "
                       "from now on the result is a copy; drop it before the next step, as "
                       "optimizer.zero_grad(set_to_none=True) does, and keep a clone() where it is "
                       "wanted later");
    }
  }
  if (!held && !still) {
    entry.results.heldSteps = 0;
    return false;
  }
  // A second arena costs memory while the first is held: gradient accumulation drops it soon.
  constexpr int64_t kPatience = 16;
  if (++entry.results.heldSteps <= kPatience || held || loans_->outstanding() > 0) return true;
  entry.results.heldSteps = 0;
  return !layOutAnew(entry);
}

/// False if there is no memory for a second arena; the first one is kept then.
bool Runtime::Impl::layOutAnew(const EntryState& next) {
  if (!plan(next).empty()) return false;
  remarks_.add(RemarkKind::Analysis, "runtime", "arena-anew",
               "results that were lent are held for long: the arena is laid out and captured anew, "
               "and the old one stays until they are dropped");
  return true;
}

/// False if the saved values come from a step that ran uncaptured: they lie where none of its successors
/// will have them.
bool Runtime::Impl::producersAgree(const EntryState& entry, bool lent) const {
  return std::all_of(entry.producers.begin(), entry.producers.end(),
                     [lent](const EntryState* producer) {
                       return producer->wasServed && (lent || !producer->lentSaved);
                     });
}

void Runtime::Impl::checkLentValues(const EntryState& entry, bool lent) const {
  TORCH_CHECK(
      !lent || !lentOverwritten_, "entry '", entry.code->entry->name,
      "' is given saved values that its last run has overwritten: they are lent for one run; ",
      "run the entry that saves them again");
}

bool Runtime::Impl::givenLentValues(const EntryState& entry,
                                    const std::vector<c10::IValue>& inputs) const {
  return givenValuesIn(slab_.get(), entry, inputs);
}

/// True if one of the saved values lies in the arena.
bool Runtime::Impl::givenValuesIn(const Slab* slab, const EntryState& entry,
                                  const std::vector<c10::IValue>& inputs) {
  const auto& infos = entry.code->entry->inputs;
  for (size_t i = 0; i < inputs.size() && i < infos.size(); ++i) {
    const bool saved = infos[i].role == InputRole::Saved && inputs[i].isTensor();
    if (saved && inSlab(inputs[i].toTensor(), slab)) return true;
  }
  return false;
}

namespace {

constexpr const char* kKeepPlace =
    "write into the tensor (`copy_`) instead of putting another one in its place";
constexpr const char* kKeepLayout = "keep one memory format, or compile a model for each";
constexpr const char* kKeepNumber = "give it as a tensor, or compile a function for each value";

ChangedInput changeOf(size_t input, const OperandGuard& guard, const c10::IValue& value) {
  ChangedInput changed{input, nullptr, {}};
  if (guard.differsInAddressAlone(value)) {
    changed.address = value.toTensor().const_data_ptr();
  } else if (guard.differsInStrides(value)) {
    changed.strides = value.toTensor().strides().vec();
  }
  return changed;
}

/// `relaid`: layouts have changed before. Where they do, addresses change, too.
const char* remedyFor(const std::vector<ChangedInput>& changed, bool relaid) {
  const auto isLaid = [](const ChangedInput& each) { return !each.strides.empty(); };
  if (llvm::any_of(changed, isLaid)) return kKeepLayout;
  if (changed.front().address == nullptr) return kKeepNumber;
  return relaid ? kKeepLayout : kKeepPlace;
}

}  // namespace

/// Checks inputs against the program, and against what was captured. "" if they may be replayed with, or
/// captured anew.
std::string Runtime::Impl::inputsDiffer(EntryState& entry, const std::vector<c10::IValue>& inputs) {
  ++entry.inputs.runs;
  std::vector<ChangedInput> changed;
  size_t next = 0;
  std::string found;
  const auto add = [&](size_t index, const OperandGuard& guard) {
    entry.inputs.checks[index].check(inputs[index]);
    if (found.empty()) {
      found = inputName(*entry.code->entry, index) + ": " + guard.difference(inputs[index]);
    }
    changed.push_back(changeOf(index, guard, inputs[index]));
  };
  for (const auto& [index, guard] : entry.inputs.guards) {
    for (; next < index; ++next) entry.inputs.checks[next].check(inputs[next]);
    ++next;
    if (!guard.holds(inputs[index])) add(index, guard);
  }
  for (; next < inputs.size(); ++next) entry.inputs.checks[next].check(inputs[next]);
  if (!changed.empty()) {  // captures beside these may hold, though results of theirs are held, too
    const Seal* beside = entry.seals.findBeside(inputs);
    if (beside && takeUp(entry, *beside)) {
      changed.clear();
      found.clear();
    }
  }
  if (!entry.inputs.moving->empty()) {
    const int64_t index = entry.inputs.moving->firstUncopyable(inputs);
    if (index >= 0) {
      add(index, OperandGuard(entry.inputs.moving->copyOf(index), /*keep=*/true));
      changed.back().address = nullptr;  // it may not be copied, wherever it stays
    }
  }
  if (changed.empty()) {
    entry.inputs.changed.clear();
    return "";
  }
  const size_t first = changed.front().input;
  const char* const remedy = remedyFor(changed, layouts_ > 0);
  if (acceptChanges(entry, inputs, std::move(changed), found)) return "";
  ranUncaptured(entry, found, remedy);
  return missed(entry.code->entry->name + " " + std::to_string(first), "guard-failed",
                found + "; this step ran uncaptured");
}

/// Inputs differ from what was captured. True if the step is captured anew: because they lie where they
/// lay in the step before, or since those that move in each step are copied from now on. Else it runs
/// uncaptured, and if they are laid out as in the step before, memory is planned anew.
bool Runtime::Impl::acceptChanges(EntryState& entry, const std::vector<c10::IValue>& inputs,
                                  std::vector<ChangedInput> changed, const std::string& found) {
  const bool same = entry.inputs.changed == changed;
  const auto lies = [](const ChangedInput& each) { return each.address != nullptr; };
  const auto isLaid = [](const ChangedInput& each) { return !each.strides.empty(); };
  const bool allMoved = llvm::all_of(changed, lies);
  bool again = false;
  const bool beside = allMoved && !same && standsBeside(entry, inputs, changed, again);
  if (allMoved && !beside && stageMoving(entry, inputs, changed)) {
    forgetCaptures(entry);
    return true;
  }
  if (again || (allMoved && same)) {
    captureBeside(entry);
    remarks_.add(RemarkKind::Analysis, "runtime", "captured-anew", found + ", for the second time");
    return true;
  }
  const auto laidAlike = [&](const ChangedInput& each) {
    return !isLaid(each) || llvm::any_of(entry.inputs.changed, [&](const ChangedInput& before) {
      return before.input == each.input && before.strides == each.strides;
    });
  };
  const bool newLayout =
      llvm::any_of(changed, isLaid) && llvm::all_of(changed, laidAlike) &&
      llvm::all_of(changed, [&](const ChangedInput& each) { return lies(each) || isLaid(each); });
  entry.inputs.changed = std::move(changed);
  if (newLayout) planForNewLayout(found);
  return false;
}

namespace {

constexpr size_t kMostAddressSets = 4;  // of its inputs, that an entry is captured for

}  // namespace

/// Of inputs that all lie elsewhere than where they were captured: whether they go to and fro between a few
/// sets of addresses, whose memory is all there at once. Then each set gets captures of its own, and nothing
/// is copied. (An input that is made anew in each step is gone from where it lay.) `again`: they have lain
/// here before.
bool Runtime::Impl::standsBeside(EntryState& entry, const std::vector<c10::IValue>& inputs,
                                 const std::vector<ChangedInput>& changed, bool& again) {
  if (communication_ || !entry.seals.current()) return false;
  auto& seen = entry.inputs.seen;
  std::erase_if(seen, [](const SeenAddresses& each) { return each.memory.isGone(); });
  entry.seals.dropGone();
  const auto here = [&](const SeenAddresses& each) { return each.changed == changed; };
  again = llvm::any_of(seen, here);
  std::erase_if(seen, here);
  if (again) return true;
  const bool others = !seen.empty();
  if (seen.size() + entry.seals.count() >= kMostAddressSets) return false;
  SeenAddresses& addresses = seen.emplace_back();
  addresses.changed = changed;
  for (const ChangedInput& each : changed) {
    const at::Tensor& value = inputs[each.input].toTensor();
    if (value.has_storage()) addresses.memory.add(value.storage());
  }
  addresses.memory.letGo();
  return others;
}

/// Has the entry captured for other addresses. Captures that it has stay beside those, for when inputs lie
/// there again.
void Runtime::Impl::captureBeside(EntryState& entry) {
  std::erase_if(entry.inputs.seen,
                [&](const SeenAddresses& each) { return each.changed == entry.inputs.changed; });
  if (communication_ || !entry.seals.current()) return forgetCaptures(entry);
  entry.seals.setAside(kMostAddressSets - 1);
  forgetPartitions(entry);
}

/// The captures of `seal`, which holds, are the entry's again.
bool Runtime::Impl::takeUp(EntryState& entry, const Seal& seal) {
  if (!entry.seals.takeUp(seal)) return false;
  auto& partitions = entry.served.partitions;
  for (size_t i = 0; i < partitions.size(); ++i) partitions[i].putBack(seal.launch(i).captured);
  collectInputGuards(entry);
  return true;
}

/// Copies, from now on, those of the changed inputs that move in each step. False if there are none, or if
/// another one neither moves so nor stays where it was in the step before.
bool Runtime::Impl::stageMoving(EntryState& entry, const std::vector<c10::IValue>& inputs,
                                const std::vector<ChangedInput>& changed) {
  std::vector<size_t> moving;
  bool all = true;
  for (const ChangedInput& each : changed) {
    const at::Tensor& value = inputs[each.input].toTensor();
    const bool stays = llvm::is_contained(entry.inputs.changed, each);
    const bool moves = entry.inputs.moving->moves(each.input, each.address, entry.inputs.runs);
    if (moves && !inSlab(value, slab_.get()) &&
        entry.inputs.moving->whyNot(each.input, value).empty()) {
      moving.push_back(each.input);
    } else {
      all &= stays;
    }
  }
  if (moving.empty() || !all) return false;
  try {
    for (const size_t input : moving) entry.inputs.moving->stage(input, inputs[input].toTensor());
  } catch (const c10::Error& error) {
    once_.missedAs("stage", "guard-failed", nullptr,
                   std::string("there is no memory for copies of inputs that move: ") +
                       error.what_without_backtrace());
    return false;
  }
  for (const size_t input : moving) {
    remarks_.add(RemarkKind::Analysis, "runtime", "input-staged",
                 inputName(*entry.code->entry, input) +
                     " lies at another address in each step: it is copied before each replay from "
                     "now on; to save that, " +
                     kKeepPlace);
  }
  return true;
}

/// Kernels are chosen by settings of the process, and a capture has those that were chosen. Settings that stay
/// otherwise have memory planned anew, since other kernels allocate otherwise, too.
std::string Runtime::Impl::settingsDiffer(EntryState& entry) {
  const auto isCaptured = [](const Partition& each) { return each.captured() != nullptr; };
  const KernelSettings& now = settings_;
  if (!entry.settings || llvm::none_of(entry.served.partitions, isCaptured)) {
    if (entry.settings && *entry.settings != now) entry.seals.breakAll();
    entry.settings = now;
  }
  if (*entry.settings == now) {
    entry.otherSettings.reset();
    return "";
  }
  const std::string found = now.difference(*entry.settings) +
                            ": set otherwise than at the capture, and kernels are chosen by it";
  const std::string why =
      missed(entry.code->entry->name, "settings-differ", found + "; this step ran uncaptured");
  ranUncaptured(entry, found, "set it before the first step, or compile a model for each");
  const bool again = entry.otherSettings == now;
  entry.otherSettings = now;
  if (again) planForNewLayout(found);
  return why;
}

/// Before a capture. What was recorded in the warm-up holds for the strides that inputs had there.
std::string Runtime::Impl::laidOtherwise(EntryState& entry,
                                         const std::vector<c10::IValue>& inputs) {
  const auto waits = [](const Partition& partition) {
    return partition.state() == PartitionState::Cold ||
           partition.state() == PartitionState::WarmedUp;
  };
  const bool guarded =
      !entry.inputs.guards.empty() || llvm::none_of(entry.served.partitions, waits);
  if (guarded || entry.inputs.strides == keptStrides(entry, inputs)) return "";
  const std::string found =
      "entry '" + entry.code->entry->name + "': inputs have other strides than in the warm-up";
  planForNewLayout(found);
  ranUncaptured(entry, found, kKeepLayout);
  return found;
}

/// Staged inputs, by whose addresses kernels round. Those that lie so twice have memory planned anew.
std::string Runtime::Impl::liesOtherwise(EntryState& entry,
                                         const std::vector<c10::IValue>& inputs) {
  std::vector<std::pair<size_t, int64_t>> others;
  for (size_t s = 0; s < entry.code->stages.size(); ++s) {
    const Stage& stage = entry.code->stages[s];
    for (size_t i = 0; i < stage.from.size(); ++i) {
      const at::Tensor& buffer = entry.served.staged[s][i];
      const Slot from = stage.from[i];
      if (!buffer.defined() || entry.code->sources[from] != SlotSource::Input) continue;
      const int64_t found = stagedRemainder(buffer, inputs[from].toTensor());
      if (found != addressRemainder(buffer)) others.emplace_back(from, found);
    }
  }
  const bool again = others == entry.inputs.remainders;
  if (!again) entry.inputs.remainders = others;
  if (others.empty()) return "";
  const auto [input, bytes] = others.front();
  const std::string found = inputName(*entry.code->entry, input) + " lies " +
                            std::to_string(bytes) +
                            " bytes past a multiple of 16, otherwise than in the warm-up, and "
                            "kernels round by that";
  const std::string why = missed(entry.code->entry->name + " " + std::to_string(input),
                                 "guard-failed", found + "; this step ran uncaptured");
  ranUncaptured(entry, found, "give a tensor of its own (`clone()`) instead of a part of another");
  if (again) planForNewLayout(found);
  return why;
}

/// Inputs have come to stay in another layout, by which kernels choose that of their results: all entries
/// warm up again, and memory is planned anew. Layouts that come and go are given up on.
void Runtime::Impl::planForNewLayout(const std::string& found) {
  constexpr int kMostLayouts = 4;
  if (layouts_ >= kMostLayouts) return;
  layoutWanted_ = loans_->outstanding() > 0;
  if (layoutWanted_) return;
  ++layouts_;
  remarks_.add(RemarkKind::Analysis, "runtime", "layout-anew",
               found + ": the program warms up and is captured again");
  forgetArena();
  layout_.reset();
  apart_ = true;
  installArena(nullptr, std::make_shared<LoanBook>());
  lentOverwritten_ = false;
  for (EntryState& entry : entries_) {
    entry.inputs.moving->forget();
    entry.warmUp.settled = false;
    entry.warmUp.runs = 0;
    entry.warmUp.record.clear();
    entry.warmUp.recording.reset();
    entry.planned = false;
    entry.uncapturedRuns = 0;
  }
}

/// Notes that a run could have been captured and was not. Where that is so again and again, it is said,
/// once, with what to do about it.
void Runtime::Impl::ranUncaptured(EntryState& entry, const std::string& why,
                                  const std::string& remedy) {
  constexpr int kRuns = 16, kMany = 8;
  constexpr uint32_t kSeen = (1U << kRuns) - 1;
  entry.uncapturedRuns = entry.uncapturedRuns << 1 | 1U;
  if (std::popcount(entry.uncapturedRuns & kSeen) < kMany) return;
  entry.uncapturedRuns = 0;
  once_.missedAs(entry.code->entry->name, "often-uncaptured", nullptr,
                 "entry '" + entry.code->entry->name + "' ran uncaptured in " +
                     std::to_string(kMany) + " of its last " + std::to_string(kRuns) +
                     " runs, this time because " + why + "; " + remedy);
}

/// Graphs may still be running: the device frees them behind their work.
void Runtime::Impl::forgetCaptures(EntryState& entry) {
  entry.seals.breakAll();
  entry.inputs.seen.clear();
  forgetPartitions(entry);
}

void Runtime::Impl::forgetPartitions(EntryState& entry) {
  for (Partition& partition : entry.served.partitions) partition.reset();
  entry.inputs.guards.clear();
  entry.inputs.changed.clear();
}

}  // namespace gravure
