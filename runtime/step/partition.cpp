#include "runtime/step/partition.h"

#include "ir/core/cudagraph_ops.h"
#include "runtime/device/rng.h"
#include "runtime/results/results.h"
#include "runtime/step/number_captures.h"

#include <llvm/ADT/StringRef.h>

#include <algorithm>

namespace gravure {
namespace {

bool isNumber(const std::vector<OperandTag>& tags, size_t operand) {
  return operand < tags.size() && tags[operand].kind == OperandKind::Guarded;
}

/// The generators that the calls draw from, each once.
std::vector<at::Generator> generatorsOf(const Launch& launch, const Frame& frame,
                                        c10::Device device) {
  std::vector<at::Generator> generators;
  for (const Call& call : launch.calls) {
    if (!call.draws && call.rng == kNoSlot) continue;
    const c10::IValue state = call.rngIn(frame);
    if (state.isTensor())
      refuseCapture(describe(call.node) + ": draws from a saved state, which is set on the host");
    const at::Generator generator =
        state.isGenerator() ? state.toGenerator() : defaultGenerator(device);
    if (std::find(generators.begin(), generators.end(), generator) == generators.end()) {
      generators.push_back(generator);
    }
  }
  return generators;
}

/// A gradient that the caller gives as a `.grad`, and may drop between two steps.
bool isGradient(const EntryCode& code, Slot slot) {
  const auto& infos = code.entry->inputs;
  if (code.sources[slot] != SlotSource::Input || static_cast<size_t>(slot) >= infos.size())
    return false;
  const InputInfo& info = infos[slot];
  return info.role == InputRole::Buffer && llvm::StringRef(info.name).ends_with(".grad");
}

/// Guards of what `launch` was captured with.
void bake(const Launch& launch, const EntryCode& code, const Frame& frame, const Slab& slab,
          CapturedPartition& captured) {
  const std::vector<OperandTag> tags = tagsOf(launch.node);
  std::vector<bool> written(launch.operands.size());
  if (captured.patches) {
    for (const PatchedNumber& number : captured.patches->numbers()) written[number.operand] = true;
  }
  for (size_t i = 0; i < launch.operands.size(); ++i) {
    if (written[i]) continue;
    const Slot slot = launch.operands[i];
    const c10::IValue& value = frame[slot];
    const bool planned = value.isTensor() && inSlab(value.toTensor(), &slab);
    const bool number = value.isTensor() && isNumber(tags, i);
    const bool outside = value.isTensor() && value.toTensor().defined() && !planned && !number;
    OperandGuard guard = number    ? OperandGuard::ofNumber(value.toTensor())
                         : outside ? OperandGuard::ofDropped(value.toTensor())
                                   : OperandGuard(value, /*keep=*/false);
    if (outside && value.toTensor().has_storage() && !isGradient(code, slot))
      captured.memory->add(value.toTensor().storage());
    for (const auto& [operand, why] : captured.baked)
      if (operand == i) guard.setReason(why);
    if (code.sources[slot] == SlotSource::Input) {
      captured.inputGuards.emplace_back(slot, std::move(guard));
    } else {
      captured.guards.emplace_back(i, std::move(guard));
    }
  }
}

}  // namespace

void Partition::quarantine(bool forGood) {
  constexpr int kMostTries = 5;
  constexpr int64_t kFirstPatience = 16;
  reset();
  state_ = PartitionState::Quarantined;
  ++failures_;
  const bool last = forGood || failures_ >= kMostTries;
  patience_ = last ? 0 : kFirstPatience << (2 * (failures_ - 1));
}

bool Partition::triesAgain() {
  if (patience_ == 0 || --patience_ > 0) return false;
  state_ = PartitionState::WarmedUp;
  return true;
}

void Partition::reset() {
  captured_.reset();
  if (state_ == PartitionState::Captured) state_ = PartitionState::WarmedUp;
}

void CapturedPartition::letGo() {
  for (c10::IValue& value : exported) {  // views of it
    const bool owns = value.isTensor() && value.toTensor().defined() &&
                      value.toTensor().has_storage() &&
                      memory->at(value.toTensor().storage().data());
    if (owns) value = withoutOwner(value.toTensor());
  }
  memory->letGo();
}

bool CapturedPartition::holdAgain() {
  if (!memory->holdAgain()) return false;
  for (c10::IValue& value : exported) {
    if (!value.isTensor() || !value.toTensor().defined() || !value.toTensor().has_storage())
      continue;
    const c10::Storage* owner = memory->at(value.toTensor().storage().data());
    if (!owner) continue;
    at::Tensor tensor = shallowCopy(value.toTensor());
    tensor.unsafeGetTensorImpl()->set_storage_keep_dtype(*owner);
    value = std::move(tensor);
  }
  return true;
}

void Partition::putBack(std::shared_ptr<CapturedPartition> captured) {
  captured_ = std::move(captured);
  state_ = PartitionState::Captured;
}

std::string CapturedPartition::difference(int64_t operand, const c10::IValue& value) const {
  for (const auto& [index, guard] : guards) {
    if (static_cast<int64_t>(index) == operand) return guard.difference(value);
  }
  return "";
}

void Partition::checkOperands(const Launch& launch, const EntryCode& code, const Frame& frame,
                              const Slab& slab) const {
  const std::vector<OperandTag> tags = tagsOf(launch.node);
  for (size_t i = 0; i < launch.operands.size(); ++i) {
    const Slot slot = launch.operands[i];
    const SlotSource source = code.sources[slot];
    const c10::IValue& value = frame[slot];
    if (source == SlotSource::Input || source == SlotSource::Launch || !value.isTensor()) continue;
    if (isNumber(tags, i)) continue;
    const at::Tensor& tensor = value.toTensor();
    const bool empty = !tensor.defined() || tensor.numel() == 0;  // a view of more, perhaps
    if (!empty && !code.ofInput[slot] && !inSlab(tensor, &slab)) {
      refuseCapture("operand %" + launch.node->input(i)->debugName() +
                    " lies outside the arena, so its address changes from step to step");
    }
  }
}

void Partition::capture(const Launch& launch, const EntryCode& code, Frame& frame,
                        torch::jit::Stack& stack, Device& device, ArenaSession& session) {
  const Slab& slab = *session.slab();
  checkOperands(launch, code, frame, slab);
  const auto generators = generatorsOf(launch, frame, device.tensorDevice());
  LaunchNumbers numbers = numbersOf(launch, frame, !generators.empty());
  auto captured = std::make_shared<CapturedPartition>();
  try {
    auto capture = device.beginCapture(generators);
    const bool watched = !numbers.numbers.empty() && capture->watchWork(/*paint=*/0);
    captureCalls(launch, frame, stack, *capture, session);
    captured->executable = capture->finish();
    for (Slot slot : launch.outputs) captured->exported.push_back(frame[slot]);
    if (watched) {
      captured->patches =
          findPatches(numbers, *captured->executable, {launch, frame, stack, device, session});
    } else {
      for (const PatchedNumber& each : numbers.numbers)
        numbers.baked.emplace_back(each.operand, "the device cannot say what it records");
    }
  } catch (...) {
    stack.clear();
    session.leaveCall();
    for (const Call& call : launch.calls) releaseSlots(call.outputs, frame);
    throw;
  }
  session.leaveCall();
  captured->baked = std::move(numbers.baked);
  bake(launch, code, frame, slab, *captured);
  for (const Call& call : launch.calls) releaseSlots(call.outputs, frame);
  captured_ = std::move(captured);
  state_ = PartitionState::Captured;
  failures_ = 0;
}

bool Partition::proveNumbers(const Launch& launch, Frame& frame, torch::jit::Stack& stack,
                             Device& device, ArenaSession& session) {
  return provePatches(*captured_->patches, *captured_->executable,
                      {launch, frame, stack, device, session});
}

}  // namespace gravure
