#include "runtime/step/seal.h"

#include <llvm/ADT/STLExtras.h>

#include <algorithm>
#include <utility>

namespace gravure {

bool Seal::capturesHold(const std::vector<c10::IValue>& inputs) const {
  if (!contents_.tensors.hold(inputs)) return false;
  for (const auto& [input, guard] : contents_.others) {
    if (!guard->holds(inputs[input])) return false;
  }
  return true;
}

bool Seal::holds(const std::vector<c10::IValue>& inputs) const {
  if (!capturesHold(inputs)) return false;
  for (const auto& [input, check] : contents_.free) check->check(inputs[input]);
  return areApart(inputs);
}

bool Seal::resultsHeld() const {
  for (const auto& book : contents_.books) {
    if (book->outstanding() > 0) return true;
  }
  return false;
}

bool Seal::launches(const std::vector<Partition>& partitions) const {
  if (partitions.size() != contents_.launches.size()) return false;
  for (size_t i = 0; i < partitions.size(); ++i) {
    if (partitions[i].captured() != contents_.launches[i].captured) return false;
  }
  return true;
}

void Seal::letGoOfMemory() const {
  for (const SealedLaunch& launch : contents_.launches) launch.captured->letGo();
}

bool Seal::holdMemory() const {
  return llvm::all_of(contents_.launches,
                      [](const SealedLaunch& launch) { return launch.captured->holdAgain(); });
}

bool Seal::isMemoryGone() const {
  return llvm::any_of(contents_.launches,
                      [](const SealedLaunch& launch) { return launch.captured->memory->isGone(); });
}

const Seal* Seals::find(const std::vector<c10::IValue>& inputs) const {
  for (const auto& seal : seals_) {
    if (seal->holds(inputs)) return seal.get();
  }
  return nullptr;
}

const Seal* Seals::findBeside(const std::vector<c10::IValue>& inputs) const {
  for (const auto& seal : seals_) {
    if (seal.get() != current_ && seal->capturesHold(inputs)) return seal.get();
  }
  return nullptr;
}

bool Seals::cover(const std::vector<Partition>& partitions) const {
  return llvm::any_of(seals_, [&](const auto& seal) { return seal->launches(partitions); });
}

void Seals::add(Seal::Contents contents) {
  seals_.insert(seals_.begin(), std::make_unique<const Seal>(std::move(contents)));
  current_ = seals_.front().get();
  ++changes_;
}

void Seals::breakAll() {
  seals_.clear();
  current_ = nullptr;
  ++changes_;
}

void Seals::breakCurrent() {
  if (current_) drop(current_);
}

void Seals::drop(const Seal* seal) {
  if (seal == current_) current_ = nullptr;
  std::erase_if(seals_, [&](const auto& each) { return each.get() == seal; });
  ++changes_;
}

void Seals::setAside(size_t most) {
  if (current_) current_->letGoOfMemory();
  current_ = nullptr;
  dropGone();
  if (seals_.size() > most) seals_.resize(most);
  ++changes_;
}

bool Seals::makeCurrent(const Seal& seal) {
  if (!seal.holdMemory()) {
    drop(&seal);
    return false;
  }
  if (current_ && current_ != &seal) current_->letGoOfMemory();
  current_ = &seal;
  const auto at = llvm::find_if(seals_, [&](const auto& each) { return each.get() == &seal; });
  std::rotate(seals_.begin(), at, at + 1);
  ++changes_;
  return true;
}

void Seals::dropGone() {
  const size_t before = seals_.size();
  std::erase_if(seals_,
                [&](const auto& each) { return each.get() != current_ && each->isMemoryGone(); });
  if (seals_.size() != before) ++changes_;
}

namespace {

/// By slot: True if each step has the same value there, once the seal's guards hold and all launches
/// before are replays.
std::vector<bool> sameEachStep(const EntryCode& code,
                               const std::vector<std::vector<at::Tensor>>& staged) {
  std::vector<bool> same(code.slots, false);
  for (const Launch& launch : code.launches) {
    for (const Slot slot : launch.outputs) same[slot] = true;
  }
  for (size_t s = 0; s < code.stages.size(); ++s) {
    const Stage& stage = code.stages[s];
    for (size_t i = 0; i < stage.from.size(); ++i) {
      const bool given = code.sources[stage.from[i]] == SlotSource::Input;
      same[stage.to[i]] = given && staged[s][i].defined();
    }
  }
  return same;
}

}  // namespace

Seal::Contents sealLaunches(const EntryCode& code, llvm::ArrayRef<InputCheck> checks,
                            const MovingInputs& moving, const std::vector<Partition>& partitions,
                            const std::vector<std::vector<at::Tensor>>& staged) {
  Seal::Contents contents;
  contents.loose = LooseInputs(code.written);
  std::vector<bool> guarded(checks.size(), false);
  for (const Partition& partition : partitions) {
    for (const auto& [input, guard] : partition.captured()->inputGuards) {
      if (guarded[input] || moving.isStaged(input)) continue;
      guarded[input] = true;
      if (const auto* layout = guard.layout()) {
        contents.tensors.add(input, *layout);
        contents.loose.addFixed(input, *layout);
      } else {
        contents.others.emplace_back(input, &guard);
        contents.loose.addLoose(input);
      }
    }
  }
  for (size_t s = 0; s < code.stages.size(); ++s) {
    const Stage& stage = code.stages[s];
    for (size_t i = 0; i < stage.from.size(); ++i) {
      const Slot from = stage.from[i];
      if (code.sources[from] != SlotSource::Input || !staged[s][i].defined()) continue;
      if (!guarded[from]) contents.loose.addLoose(from);
      guarded[from] = true;
      contents.tensors.addCopied(from, staged[s][i]);
    }
  }
  for (size_t i = 0; i < checks.size(); ++i) {
    if (guarded[i]) continue;
    contents.free.emplace_back(i, &checks[i]);
    contents.loose.addLoose(i);
  }
  contents.loose.close();
  const std::vector<bool> same = sameEachStep(code, staged);
  for (size_t l = 0; l < partitions.size(); ++l) {
    SealedLaunch& launch = contents.launches.emplace_back();
    launch.captured = partitions[l].captured();
    for (const auto& [operand, guard] : launch.captured->guards) {
      const Slot slot = code.launches[l].operands[operand];
      if (!same[slot]) launch.guards.emplace_back(slot, &guard);
    }
  }
  return contents;
}

}  // namespace gravure
