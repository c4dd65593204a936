// What is otherwise than at the capture, and what becomes of the step: nothing stale is replayed (law 3).
//
// A function here whose name ends in "Differ" says why the step runs uncaptured, "" if nothing of its kind
// keeps it from being served. What differs once may never come back, and runs uncaptured. What differs for
// the second time in the same way has come to stay:
//
//   addresses                         the entry is captured for these, too; the captures that it has stay
//                                     beside, for when inputs lie there again
//   addresses, others in each step    the inputs are copied from now on (moving_inputs.h), and captured so
//   strides, settings, remainders     kernels allocate by them: the program warms up anew
//   the state of cuDNN's dropout      captured anew in the next step
//   numbers, and all else             uncaptured: each value would take a capture of its own

#include "runtime/device/dropout_seedings.h"
#include "runtime/results/address_remainder.h"
#include "runtime/step/runtime_impl.h"

#include <ATen/Parallel.h>

#include <llvm/ADT/STLExtras.h>

namespace gravure {

namespace {

constexpr size_t kMostAddressSets = 4;  // of its inputs, that an entry is captured for

/// By input: its strides, as its caller gives it; empty where it is copied.
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

constexpr const char* kKeepAddress =
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

/// `relaid`: strides have changed before. Where they do, addresses change, too.
const char* cureFor(const std::vector<ChangedInput>& changed, bool relaid) {
  const auto isRelaid = [](const ChangedInput& each) { return !each.strides.empty(); };
  if (llvm::any_of(changed, isRelaid)) return kKeepLayout;
  if (changed.front().address == nullptr) return kKeepNumber;
  return relaid ? kKeepLayout : kKeepAddress;
}

}  // namespace

// ---- inputs

/// For stridesDiffer(): before a recorded run.
void Runtime::Impl::noteStrides(EntryState& entry, const std::vector<c10::IValue>& inputs) {
  entry.inputs.strides = keptStrides(entry, inputs);
}

/// Checks inputs against the program, too. "" if they may be replayed with, or captured anew.
std::string Runtime::Impl::inputsDiffer(EntryState& entry, const std::vector<c10::IValue>& inputs) {
  ++entry.inputs.runs;
  std::vector<ChangedInput> changed;
  std::string found;  // of the first one
  size_t next = 0;    // the first input that is not checked yet
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
  if (!changed.empty()) {
    // A seal beside the current one may hold, where held results kept it from serving.
    const Seal* beside = entry.seals.findBeside(inputs);
    if (beside && makeCurrent(entry, *beside)) {
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
  const char* const cure = cureFor(changed, warmUpsAnew_ > 0);
  if (acceptChanges(entry, inputs, std::move(changed), found)) return "";
  noteUncaptured(entry, found, cure);
  return missed(entry.code->entry->name + " " + std::to_string(first), "guard-failed",
                found + "; this step ran uncaptured");
}

/// Some inputs are not what was captured: whether this step is captured anew. `found`: how the first of them
/// differs. Where no capture comes, and strides are for the second time what they are, the program warms up
/// anew.
bool Runtime::Impl::acceptChanges(EntryState& entry, const std::vector<c10::IValue>& inputs,
                                  std::vector<ChangedInput> changed, const std::string& found) {
  const auto onlyMoved = [](const ChangedInput& each) { return each.address != nullptr; };
  const auto isRelaid = [](const ChangedInput& each) { return !each.strides.empty(); };
  if (llvm::all_of(changed, onlyMoved)) {
    const bool stays = entry.inputs.changed == changed;  // where it lay in the step before
    bool returns = false;
    const bool alternates = !stays && alternatesAddresses(entry, inputs, changed, returns);
    if (!alternates && stageMoving(entry, inputs, changed)) {
      forgetCaptures(entry);
      return true;
    }
    if (stays || returns) {
      captureBeside(entry);
      remarks_.add(RemarkKind::Analysis, "runtime", "captured-anew",
                   found + ", for the second time");
      return true;
    }
  }
  const auto isRelaidAgain = [&](const ChangedInput& each) {
    return isRelaid(each) && llvm::any_of(entry.inputs.changed, [&](const ChangedInput& before) {
             return before.input == each.input && before.strides == each.strides;
           });
  };
  const bool stridesStay =
      llvm::any_of(changed, isRelaid) && llvm::all_of(changed, [&](const ChangedInput& each) {
        return onlyMoved(each) || isRelaidAgain(each);
      });
  entry.inputs.changed = std::move(changed);
  if (stridesStay) warmUpAnew(found);
  return false;
}

/// Of inputs that all lie elsewhere than where they were captured: whether they go to and fro between a few
/// sets of addresses. Then each set gets captures of its own, and nothing is copied. The memory of all sets is
/// alive at once; that of an input which is made anew in each step is gone by the next one. `returns`: an
/// earlier step ran uncaptured because inputs lay here.
bool Runtime::Impl::alternatesAddresses(EntryState& entry, const std::vector<c10::IValue>& inputs,
                                        const std::vector<ChangedInput>& changed, bool& returns) {
  if (communication_ || !entry.seals.current()) return false;
  auto& seen = entry.inputs.seen;
  std::erase_if(seen, [](const SeenAddresses& each) { return each.memory.isGone(); });
  entry.seals.dropGone();
  const auto here = [&](const SeenAddresses& each) { return each.changed == changed; };
  returns = llvm::any_of(seen, here);
  std::erase_if(seen, here);
  if (returns) return true;
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

/// Copies, from now on, those of the changed inputs that move in each step. False if there are none, or if
/// one of the others was elsewhere in the step before, too.
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
                     kKeepAddress);
  }
  return true;
}

/// Asked before the first capture alone: what the warm-up recorded holds for the strides that inputs had in
/// it. Later the guards of the captures ask.
std::string Runtime::Impl::stridesDiffer(EntryState& entry,
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
  warmUpAnew(found);
  noteUncaptured(entry, found, kKeepLayout);
  return found;
}

/// Of staged inputs, by whose remainders kernels round (address_remainder.h). The same ones twice in a row
/// have the program warm up anew.
std::string Runtime::Impl::remaindersDiffer(EntryState& entry,
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
  noteUncaptured(entry, found, "give a tensor of its own (`clone()`) instead of a part of another");
  if (again) warmUpAnew(found);
  return why;
}

// ---- captures for several sets of addresses

/// Has the entry captured for the addresses of this step. The captures that it has stay beside, for when
/// inputs lie there again.
void Runtime::Impl::captureBeside(EntryState& entry) {
  std::erase_if(entry.inputs.seen,
                [&](const SeenAddresses& each) { return each.changed == entry.inputs.changed; });
  if (communication_ || !entry.seals.current()) return forgetCaptures(entry);
  entry.seals.setAside(kMostAddressSets - 1);
  forgetPartitions(entry);
}

/// The captures of `seal`, which holds, are the entry's again. False where memory that they read is gone.
bool Runtime::Impl::makeCurrent(EntryState& entry, const Seal& seal) {
  if (!entry.seals.makeCurrent(seal)) return false;
  auto& partitions = entry.served.partitions;
  for (size_t i = 0; i < partitions.size(); ++i) partitions[i].putBack(seal.launch(i).captured);
  collectInputGuards(entry);
  return true;
}

// ---- what else kernels go by

/// Kernels are chosen by settings of the process, and a capture has those that were chosen. Other kernels
/// allocate otherwise, too: where the same other settings come twice in a row, the program warms up anew.
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
  noteUncaptured(entry, found, "set it before the first step, or compile a model for each");
  const bool again = entry.otherSettings == now;
  entry.otherSettings = now;
  if (again) warmUpAnew(found);
  return why;
}

/// Whether cuDNN's dropout, if the entry has any, draws from the state that its captures read.
bool Runtime::Impl::dropoutHolds(const EntryState& entry) const {
  if (!entry.code->hasCudnnDropout) return true;
  return entry.dropoutSeedings == gravure::dropoutSeedings() && !device_->seedsDropoutNext();
}

/// The step that seeds it reads the seed on the host, so it runs uncaptured; behind it all is captured anew.
std::string Runtime::Impl::dropoutDiffers(EntryState& entry) {
  if (dropoutHolds(entry)) return "";
  const bool seedsNow = device_->seedsDropoutNext();
  if (entry.dropoutSeedings >= 0) forgetCaptures(entry);
  entry.dropoutSeedings = seedsNow ? -1 : gravure::dropoutSeedings();
  if (!seedsNow) return "";
  const std::string found = "cuDNN's dropout is seeded anew";
  const std::string why =
      missed(entry.code->entry->name, "dropout-seeded",
             found + ", as behind torch.manual_seed(); this step ran uncaptured");
  noteUncaptured(entry, found, "call torch.manual_seed() before the first step, not in each");
  return why;
}

/// Kernels allocate by the number of threads.
std::string Runtime::Impl::threadsDiffer(EntryState& entry) {
  if (at::get_num_threads() == threads_) return "";
  const std::string threads =
      "the number of threads differs from that of the warm-up, and kernels allocate by it";
  const std::string why = missed("threads", "guard-failed", threads + "; this step ran uncaptured");
  noteUncaptured(entry, threads, "call torch.set_num_threads() once, before the first step");
  return why;
}

// ---- a new beginning

/// What kernels allocate by has changed for good: all entries warm up again, and memory is planned anew; once
/// nobody holds saved values, which lie in the arena. A program that changes it again and again stays as it
/// is, and runs uncaptured where it differs.
void Runtime::Impl::warmUpAnew(const std::string& found) {
  constexpr int kMost = 4;
  if (warmUpsAnew_ >= kMost) return;
  warmUpWanted_ = loans_->outstanding() > 0;
  if (warmUpWanted_) return;
  ++warmUpsAnew_;
  remarks_.add(RemarkKind::Analysis, "runtime", "layout-anew",
               found + ": the program warms up and is captured again");
  forgetArena();
  layout_.reset();
  apart_ = true;
  installArena(nullptr, std::make_shared<LoanBook>());
  lentOverwritten_ = false;
  for (EntryState& entry : entries_) {
    entry.inputs.moving->forget();
    entry.warmUp.complete = false;
    entry.warmUp.runs = 0;
    entry.warmUp.record.clear();
    entry.warmUp.recording.reset();
    entry.planned = false;
    entry.uncapturedRuns = 0;
  }
}

/// Drops all captures and seals. Graphs may still be running: the device frees them behind their work.
void Runtime::Impl::forgetCaptures(EntryState& entry) {
  entry.seals.breakAll();
  entry.inputs.seen.clear();
  forgetPartitions(entry);
}

/// The captures in force alone.
void Runtime::Impl::forgetPartitions(EntryState& entry) {
  for (Partition& partition : entry.served.partitions) partition.reset();
  entry.inputs.guards.clear();
  entry.inputs.changed.clear();
}

}  // namespace gravure
