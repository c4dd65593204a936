// The path of a step, by what is asked first:
//
//   a seal holds, and nothing is in the way of a replay      served, by the seal
//   inputs share memory that the entry writes                refused, where the caller asked for that
//   the caller captures the stream                           plain, in the caller's graph
//   it is asked for, or there was no memory for an arena     plain
//   the entry has not warmed up                              recorded
//   the arena cannot be laid out yet                         plain
//   something is otherwise than at the capture               plain; or served, once that was accepted
//   somebody holds what a replay would write over            plain
//   all else                                                 served; partitions are captured on the way
//
// A step that is plain for a reason that a user can mend has a remark. What is otherwise than at the capture,
// and what becomes of it: differences.cpp.

#include "runtime/layout/result_ownership.h"
#include "runtime/step/runtime_impl.h"

#include <ATen/Parallel.h>

#include <llvm/ADT/STLExtras.h>

#include <algorithm>
#include <bit>

namespace gravure {

StepPath Runtime::Impl::choosePath(EntryState& entry, const std::vector<c10::IValue>& inputs,
                                   bool uncaptured) {
  StepPath path;
  const bool chosen = !uncaptured && !callerCaptures_ && sealedPath(entry, inputs, path);
  if (chosen) return path;
  checkMemory(entry, inputs);
  return unsealedPath(entry, inputs, uncaptured);
}

// ---- a seal that holds

/// False, and nothing is otherwise than before, where no seal holds, or something is in the way of a replay:
/// unsealedPath() finds out what becomes of the step, and says so.
bool Runtime::Impl::sealedPath(EntryState& entry, const std::vector<c10::IValue>& inputs,
                               StepPath& path) {
  const Seal* seal = entry.seals.find(inputs);
  return seal && enterSealed(entry, *seal, inputs, path);
}

/// `seal` holds for `inputs`. False as sealedPath(): it speaks of inputs alone, so all else that may be in the
/// way is asked here.
bool Runtime::Impl::enterSealed(EntryState& entry, const Seal& seal,
                                const std::vector<c10::IValue>& inputs, StepPath& path) {
  if (warmUpWanted_ || at::get_num_threads() != threads_ || hasLateEntry()) return false;
  if (!entry.settings || *entry.settings != settings_) return false;
  if (!dropoutHolds(entry)) return false;
  const auto known = seal.readsLent();
  const bool lent = known ? *known : givenLentValues(entry, inputs);
  // The lent values are those of this step, and still good; or there are none.
  const bool good = lent ? !lentOverwritten_ : loans_->outstanding() == 0;
  if (!good || !producersAgree(entry, lent) || seal.resultsHeld()) return false;
  // That they share no memory with what is written the seal has found: they are loose inputs of it.
  if (entry.inputs.moving->firstOtherLayout(inputs) >= 0) return false;
  if (&seal != entry.seals.current() && !makeCurrent(entry, seal)) return false;
  constexpr int64_t kRunsBetween = 64;  // looking whether what other seals read is gone costs time
  if (entry.seals.count() > 1 && entry.inputs.runs % kRunsBetween == 0) entry.seals.dropGone();
  entry.inputs.noteUnchanged();
  entry.results.heldSteps = 0;
  entry.otherSettings.reset();
  enterArena(entry, lent, &seal, path);
  return true;
}

// ---- no seal holds

StepPath Runtime::Impl::unsealedPath(EntryState& entry, const std::vector<c10::IValue>& inputs,
                                     bool uncaptured) {
  if (callerCaptures_) {
    checkInputs(entry, inputs);
    checkForCaller(entry, inputs);
    return StepPath::plain();
  }
  const auto reads = [](const EntryState& each) { return !each.producers.empty(); };
  if (!saving_ && !options_.uncaptured && llvm::any_of(entries_, reads))
    saving_.emplace(device_->tensorDevice());
  if (!layout_ || isPartial()) {  // what the layout goes by is still being found out
    watchResults(entry);
    if (!entry.planned) noteUnread(entry);
    if (!uncaptured) followOthers();
  }
  if (uncaptured || options_.uncaptured || stats_.steps < arenaRetryAt_) {
    checkInputs(entry, inputs);
    checkLentValues(entry, givenLentValues(entry, inputs));
    return StepPath::plain();
  }
  if (warmUpWanted_ && layout_ && loans_->outstanding() == 0)
    warmUpAnew("inputs are laid out otherwise than in the warm-up");
  if (!entry.warmUp.complete) {
    checkInputs(entry, inputs);
    noteStrides(entry, inputs);
    StepPath path;
    path.kind = StepPath::Kind::Recorded;
    return path;
  }
  std::string why;
  // A backward cannot be served before its forward was, so it lays nothing out: by the next forward it is
  // seen, too, whether what the backward returned is dropped. Each try empties PyTorch's cache, so they
  // become rare.
  if (entry.producers.empty() && mayPlan() && !(why = plan(entry)).empty())
    arenaRetryAt_ = 2 * stats_.steps + 16;
  if (!layout_ || !entry.planned) {
    checkInputs(entry, inputs);
    return StepPath::plain(std::move(why));
  }
  return servedPath(entry, inputs);
}

/// For an entry whose memory is planned.
StepPath Runtime::Impl::servedPath(EntryState& entry, const std::vector<c10::IValue>& inputs) {
  const bool lent = givenLentValues(entry, inputs);
  if (!producersAgree(entry, lent)) {
    checkInputs(entry, inputs);
    return StepPath::plain();
  }
  std::string why = settingsDiffer(entry);
  if (why.empty()) why = dropoutDiffers(entry);
  if (!why.empty()) checkInputs(entry, inputs);  // else inputsDiffer() does
  if (why.empty()) why = inputsDiffer(entry, inputs);
  if (why.empty()) why = stridesDiffer(entry, inputs);
  if (why.empty()) why = remaindersDiffer(entry, inputs);
  if (why.empty()) why = threadsDiffer(entry);
  if (!why.empty()) return StepPath::plain(std::move(why));
  checkLentValues(entry, lent);
  if (loans_->outstanding() > 0 && !lent) return StepPath::plain(savedHeld(entry));
  if (resultsHeld(entry)) return StepPath::plain("a result of an earlier step is still held");
  StepPath path;
  enterArena(entry, lent, /*seal=*/nullptr, path);
  return path;
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

/// Whether inputs fit the program, whatever was captured. Throws c10::Error for one that does not.
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

/// Makes `path` a served one, with the arena's memory, unless there is none for it now. `lent`: the step
/// reads saved values in it.
void Runtime::Impl::enterArena(EntryState& entry, bool lent, const Seal* seal, StepPath& path) {
  std::string why;
  const auto index = static_cast<size_t>(&entry - entries_.data());
  if (!slab_->enter(index, why)) {
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
    for (const Extent& used : layout_->used[index])
      device_->poison(slab_->base() + used.begin, used.end - used.begin);
  }
  entry.uncapturedRuns <<= 1;
}

// ---- saved values

/// False if the saved values come from a step that ran uncaptured: they lie where no later step will have
/// them.
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

/// Why no replay may write over saved values of an earlier step.
std::string Runtime::Impl::savedHeld(EntryState& entry) {
  const std::string why =
      missed(entry.code->entry->name, "saved-values-held",
             "entry '" + entry.code->entry->name +
                 "' ran uncaptured while saved values of an earlier step are held: their "
                 "memory may not be reused yet");
  noteUncaptured(entry, "saved values of an earlier step are held",
                 "run its backward, or drop what it returned, before the next step; a forward "
                 "that needs no backward runs under torch.no_grad()");
  return why;
}

// ---- results that somebody holds

/// Before `begins` runs, until the arena is laid out: notes which results of later entries, of outputs of its
/// own, and of earlier entries somebody still holds.
void Runtime::Impl::watchResults(const EntryState& begins) {
  EntryState& own = entries_[&begins - entries_.data()];
  const std::vector<OutputInfo>& infos = own.code->entry->outputs;
  for (size_t o = 0; o < own.results.watches.size() && o < infos.size(); ++o) {
    if (infos[o].role != OutputRole::Output) continue;
    ResultWatch& watch = own.results.watches[o];
    if (&begins == entries_.data()) {
      watch.ownStepBegins();
    } else {
      watch.nextStepBegins();
    }
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
/// copied from now on. What was lent before may be held for long all the same: after many steps the arena is
/// laid out anew, and the old one is left to the holder.
bool Runtime::Impl::resultsHeld(EntryState& entry) {
  bool held = false;   // a result that was lent until now
  bool still = false;  // one that is copied by now, and was lent before
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

// ---- why a step is plain

/// Says once why a step runs uncaptured, and returns it.
std::string Runtime::Impl::missed(const std::string& key, const std::string& name,
                                  std::string message) {
  once_.missedAs(key, name, nullptr, message);
  return message;
}

/// Notes that a run could have been captured and was not. Where that is so again and again, it is said,
/// once, with what to do about it.
void Runtime::Impl::noteUncaptured(EntryState& entry, const std::string& why,
                                   const std::string& cure) {
  constexpr int kRuns = 16, kMany = 8;
  constexpr uint32_t kSeen = (1U << kRuns) - 1;
  entry.uncapturedRuns = entry.uncapturedRuns << 1 | 1U;
  if (std::popcount(entry.uncapturedRuns & kSeen) < kMany) return;
  entry.uncapturedRuns = 0;
  once_.missedAs(entry.code->entry->name, "often-uncaptured", nullptr,
                 "entry '" + entry.code->entry->name + "' ran uncaptured in " +
                     std::to_string(kMany) + " of its last " + std::to_string(kRuns) +
                     " runs, this time because " + why + "; " + cure);
}

}  // namespace gravure
