#include "runtime/handing.h"
#include "runtime/runtime_impl.h"

#include <ATen/Parallel.h>

#include <llvm/ADT/STLExtras.h>

#include <algorithm>

namespace gravure {

namespace {

/// Against the program alone.
void checkInputs(const EntryState& entry, const std::vector<c10::IValue>& inputs) {
  for (size_t i = 0; i < inputs.size(); ++i) entry.checks[i].check(inputs[i]);
}

}  // namespace

Runtime::Impl::Path Runtime::Impl::choosePath(EntryState& entry,
                                              const std::vector<c10::IValue>& inputs,
                                              bool uncaptured) {
  if (!layout_) watchResults(entry);
  if (uncaptured || options_.uncaptured || stats_.steps < arenaRetryAt_) {
    checkInputs(entry, inputs);
    checkLentValues(entry, givenLentValues(entry, inputs));
    return Path::Plain;
  }
  if (!entry.settled) {
    checkInputs(entry, inputs);
    return Path::Recorded;
  }
  // Each try empties PyTorch's cache, so they become rare.
  if (!layout_ && allSettled() && !plan()) arenaRetryAt_ = 2 * stats_.steps + 16;
  if (!layout_) {
    checkInputs(entry, inputs);
    return Path::Plain;
  }
  return mayServe(entry, inputs) ? Path::Served : Path::Plain;
}

bool Runtime::Impl::mayServe(EntryState& entry, const std::vector<c10::IValue>& inputs) {
  const bool lent = givenLentValues(entry, inputs);
  if (!giversAgree(entry, lent)) {
    checkInputs(entry, inputs);
    return false;
  }
  if (!inputsHold(entry, inputs)) return false;
  if (at::get_num_threads() != threads_) {
    once_.missedAs(
        "threads", "guard-failed", nullptr,
        "the number of threads differs from that of the warm-up, and kernels allocate by "
        "it; this step ran uncaptured");
    return false;
  }
  checkLentValues(entry, lent);
  if (loans_->outstanding() > 0 && !lent) {
    once_.missedAs(
        entry.code->entry->name, "saved-values-held", nullptr,
        "entry '" + entry.code->entry->name +
            "' ran uncaptured while saved values of an earlier step are held: their memory "
            "may not be reused yet");
    return false;
  }
  if (resultsHeld(entry) || !enterArena()) return false;
  lentOverwritten_ = lent;
  return true;
}

/// Takes the arena's memory for a step, which must leave it. False if there is none for it now.
bool Runtime::Impl::enterArena() {
  std::string why;
  if (!slab_->enter(why)) {
    TORCH_CHECK(!options_.requireCapture, "no memory for the arena: ", why);
    once_.missedAs("enter", "no-arena", nullptr,
                   "no memory for the arena of " + std::to_string(slab_->bytes()) +
                       " bytes, which other programs of the device use or which was given back: " +
                       why + "; this step ran uncaptured");
    return false;
  }
  if (device_->poisons() && slab_->mayHaveChanged()) {
    device_->poison(slab_->base(), slab_->bytes());
  }
  return true;
}

/// Before `begins` runs: notes which results of the entries behind it somebody holds.
void Runtime::Impl::watchResults(const EntryState& begins) {
  for (EntryState& entry : llvm::drop_begin(entries_, &begins - entries_.data() + 1)) {
    for (ResultWatch& watch : entry.watches) watch.nextStepBegins();
  }
}

/// True if a replay would write over a lent result that somebody holds: of the entry's own, or of one
/// behind it if it was dropped in time when the arena was laid out. Such a result is copied from now on;
/// if it is held for many steps more, the arena is laid out anew, and the old one is left to the holder.
bool Runtime::Impl::resultsHeld(EntryState& entry) {
  bool held = false, still = false;
  for (EntryState& lender : llvm::drop_begin(entries_, &entry - entries_.data())) {
    for (size_t o = 0; o < lender.lent.size(); ++o) {
      if (lender.lent[o]->outstanding() == 0) continue;
      if (&lender != &entry && !lender.watches[o].droppedInTime()) continue;
      if (lender.code->handing[o] != Handing::Lent) {
        still = true;
        continue;
      }
      held = true;
      copyFromNowOn(*lender.code, o);
      const OutputInfo& info = lender.code->entry->outputs[o];
      remarks_.add(RemarkKind::Missed, "runtime", "result-held",
                   std::string(roleName(info.role)) + " \"" + info.name + "\" of entry '" +
                       lender.code->entry->name +
                       "' was still held when its next step began: that step ran uncaptured, and "
                       "from now on the result is a copy");
    }
  }
  if (!held && !still) {
    entry.heldSteps = 0;
    return false;
  }
  once_.note("a result of an earlier step is still held");
  // A second arena costs memory while the first is held: gradient accumulation drops it soon.
  constexpr int64_t kPatience = 16;
  if (++entry.heldSteps <= kPatience || held || loans_->outstanding() > 0) return true;
  entry.heldSteps = 0;
  return !layOutAnew();
}

/// False if there is no memory for a second arena; the first one is kept then.
bool Runtime::Impl::layOutAnew() {
  if (!plan()) return false;
  remarks_.add(RemarkKind::Analysis, "runtime", "arena-anew",
               "results that were lent are held for long: the arena is laid out and captured anew, "
               "and the old one stays until they are dropped");
  return true;
}

/// False if the saved values come from a step that ran uncaptured: they lie where none of its successors
/// will have them.
bool Runtime::Impl::giversAgree(const EntryState& entry, bool lent) const {
  return std::all_of(entry.givers.begin(), entry.givers.end(), [lent](const EntryState* giver) {
    return giver->wasServed && (lent || !giver->lentSaved);
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
  const auto& infos = entry.code->entry->inputs;
  for (size_t i = 0; i < inputs.size() && i < infos.size(); ++i) {
    const bool saved = infos[i].role == InputRole::Saved && inputs[i].isTensor();
    if (saved && inSlab(inputs[i].toTensor(), slab_.get())) return true;
  }
  return false;
}

/// Checks inputs against the program, and against what was captured.
bool Runtime::Impl::inputsHold(EntryState& entry, const std::vector<c10::IValue>& inputs) {
  std::vector<std::pair<size_t, const void*>> strangers;
  size_t next = 0;
  std::string found;
  for (const auto& [index, guard] : entry.inputGuards) {
    for (; next < index; ++next) entry.checks[next].check(inputs[next]);
    ++next;
    if (guard.holds(inputs[index])) continue;
    entry.checks[index].check(inputs[index]);
    const bool tensor = inputs[index].isTensor();
    if (found.empty()) {
      found = inputName(*entry.code->entry, index) + ": " + guard.difference(inputs[index]);
    }
    // Only another address can be captured anew; a number or a layout cannot.
    const bool moved = tensor && guard.differsInAddressAlone(inputs[index]);
    strangers.emplace_back(index, moved ? inputs[index].toTensor().const_data_ptr() : nullptr);
  }
  for (; next < inputs.size(); ++next) entry.checks[next].check(inputs[next]);
  if (strangers.empty()) {
    entry.strangers.clear();
    return true;
  }
  if (sameStrangers(entry, strangers)) {
    forgetCaptures(entry);
    remarks_.add(RemarkKind::Analysis, "runtime", "captured-anew", found + ", for the second time");
    return true;
  }
  once_.missedAs(std::to_string(strangers.front().first), "guard-failed", nullptr,
                 found + "; this step ran uncaptured");
  return false;
}

/// True if the same inputs lay at the same addresses in the step before.
bool Runtime::Impl::sameStrangers(EntryState& entry,
                                  std::vector<std::pair<size_t, const void*>> strangers) {
  const bool allMoved = std::all_of(strangers.begin(), strangers.end(), [](const auto& stranger) {
    return stranger.second != nullptr;
  });
  const bool same = allMoved && entry.strangers == strangers;
  entry.strangers = std::move(strangers);
  return same;
}

void Runtime::Impl::forgetCaptures(EntryState& entry) {
  device_->synchronize();
  for (Partition& partition : entry.served.partitions) partition.reset();
  entry.inputGuards.clear();
  entry.strangers.clear();
}

}  // namespace gravure
