#include "runtime/step/moving_inputs.h"

#include "runtime/results/address_remainder.h"
#include "runtime/results/tensor_copies.h"

#include <llvm/ADT/DenseMap.h>
#include <llvm/ADT/STLExtras.h>

namespace gravure {
namespace {

const void* memoryOf(const c10::IValue& value) {
  if (!value.isTensor() || !value.toTensor().defined() || !value.toTensor().has_storage())
    return nullptr;
  return value.toTensor().storage().data();
}

/// Where results lie before Own instructions move them.
llvm::DenseMap<Slot, Slot> movedFrom(const EntryCode& code) {
  llvm::DenseMap<Slot, Slot> from;
  for (const Own& own : code.owns) {
    for (size_t i = 0; i < own.to.size(); ++i) from[own.to[i]] = own.from[i];
  }
  return from;
}

}  // namespace

MovingInputs::MovingInputs(const EntryCode& code) : code_(code), last_(code.inputs.size()) {}

bool MovingInputs::moves(size_t input, const void* address, int64_t run) {
  constexpr int64_t kShort = 8;  // runs
  constexpr int kOften = 3;
  Seen& seen = last_[input];
  const bool again = seen.run >= 0 && run - seen.run <= kShort;
  const bool inARow = again && run - seen.run == 1;
  if (inARow && seen.address == address) {  // it stays there
    seen.run = run;
    return false;
  }
  seen.times = again ? seen.times + 1 : 1;
  seen.run = run;
  seen.address = address;
  return inARow || seen.times >= kOften;
}

std::string MovingInputs::whyNot(size_t input, const at::Tensor& value) const {
  if (value.layout() != c10::kStrided || !value.has_storage() || value.is_conj() || value.is_neg())
    return "it is no plain tensor";
  const Slot slot = code_.inputs[input];
  const auto from = movedFrom(code_);
  const auto& infos = code_.entry->outputs;
  for (size_t o = 0; o < code_.outputs.size() && o < infos.size(); ++o) {
    const Slot output = code_.outputs[o];
    const auto moved = from.find(output);
    const Slot lies = moved == from.end() ? output : moved->second;
    const bool itself = code_.sources[lies] == SlotSource::Input ||
                        (infos[o].role == OutputRole::Mutation && infos[o].input >= 0);
    if (!itself && code_.storages[lies] >= 0 && code_.storages[lies] == code_.storages[slot])
      return "the step hands out a view of it";
  }
  return "";
}

void MovingInputs::stage(size_t input, const at::Tensor& value) {
  Staged staged;
  staged.input = input;
  staged.written = llvm::is_contained(code_.written, input);
  staged.copy = emptyAlike(value);
  staged_.push_back(std::move(staged));
  last_[input].staged = true;
}

bool MovingInputs::hasOtherLayout(const Staged& staged, const c10::IValue& value) const {
  return !value.isTensor() || !sameLayout(value.toTensor(), staged.copy) ||
         value.toTensor().scalar_type() != staged.copy.scalar_type() ||
         addressRemainder(value.toTensor()) != addressRemainder(staged.copy);
}

int64_t MovingInputs::firstOtherLayout(const std::vector<c10::IValue>& inputs) const {
  for (const Staged& each : staged_) {
    if (hasOtherLayout(each, inputs[each.input])) return static_cast<int64_t>(each.input);
  }
  return -1;
}

int64_t MovingInputs::firstUncopyable(const std::vector<c10::IValue>& inputs) const {
  struct Users {
    size_t all = 0, written = 0;
  };
  llvm::DenseMap<const void*, Users> users;
  for (const c10::IValue& value : inputs) {
    if (const void* memory = memoryOf(value)) ++users[memory].all;
  }
  for (const size_t input : code_.written) {
    if (const void* memory = memoryOf(inputs[input])) ++users[memory].written;
  }
  const auto isShared = [&](const Staged& staged) {
    const void* const memory = memoryOf(inputs[staged.input]);
    if (!memory) return false;
    const Users& of = users[memory];
    return of.written > (staged.written ? 1 : 0) || (staged.written && of.all > 1);
  };
  for (const Staged& each : staged_) {
    if (hasOtherLayout(each, inputs[each.input]) || isShared(each))
      return static_cast<int64_t>(each.input);
  }
  return -1;
}

const at::Tensor& MovingInputs::copyOf(size_t input) const {
  const auto found =
      llvm::find_if(staged_, [&](const Staged& each) { return each.input == input; });
  TORCH_INTERNAL_ASSERT(found != staged_.end(), "an input that is not staged");
  return found->copy;
}

void MovingInputs::copyIn(std::vector<c10::IValue>& inputs) {
  CopyBatches copies;
  for (Staged& each : staged_) {
    c10::IValue& value = inputs[each.input];
    copies.add(each.copy, value.toTensor());
    if (each.written) each.original = value.toTensor();
    value = each.copy;
  }
  copies.run();
}

void MovingInputs::copyBack() {
  CopyBatches copies;
  for (Staged& each : staged_) {
    if (each.original.defined()) copies.add(std::exchange(each.original, {}), each.copy);
  }
  copies.run();
}

void MovingInputs::abandon() noexcept {
  try {
    copyBack();
  } catch (const std::exception&) {  // the step's own error is on its way
    for (Staged& each : staged_) each.original.reset();
  }
}

void MovingInputs::forget() {
  staged_.clear();
  last_.assign(last_.size(), {});
}

}  // namespace gravure
