#include "runtime/step/partition.h"

#include "ir/core/cudagraph_ops.h"
#include "runtime/device/rng.h"
#include "runtime/results/results.h"
#include "runtime/step/attention_seeds.h"
#include "runtime/step/number_captures.h"

#include <llvm/ADT/STLExtras.h>
#include <llvm/ADT/StringRef.h>

#include <algorithm>
#include <utility>

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

/// Those of `exported` that are views of operands outside of the arena.
std::vector<ViewOfOperand> viewsOf(const Launch& launch, const Frame& frame, const Slab& slab,
                                   const std::vector<c10::IValue>& exported) {
  std::vector<ViewOfOperand> views;
  const auto isOutside = [&](const at::Tensor& tensor) {
    return tensor.defined() && tensor.has_storage() && tensor.numel() > 0 && !inSlab(tensor, &slab);
  };
  const auto add = [&](const at::Tensor& tensor, size_t output, int64_t member) {
    if (!isOutside(tensor)) return;
    for (size_t i = 0; i < launch.operands.size(); ++i) {
      const c10::IValue& value = frame[launch.operands[i]];
      if (!value.isTensor() || !isOutside(value.toTensor())) continue;
      const at::Tensor& operand = value.toTensor();
      if (!operand.storage().is_alias_of(tensor.storage())) continue;
      const int64_t distance = static_cast<const char*>(tensor.const_data_ptr()) -
                               static_cast<const char*>(operand.const_data_ptr());
      views.push_back({output, member, i, distance, tensor.storage().unsafeGetStorageImpl()});
      return;
    }
  };
  for (size_t output = 0; output < exported.size(); ++output) {
    const c10::IValue& value = exported[output];
    if (value.isTensor()) add(value.toTensor(), output, -1);
    if (!value.isTensorList()) continue;
    const auto members = value.toTensorVector();
    for (size_t m = 0; m < members.size(); ++m) add(members[m], output, static_cast<int64_t>(m));
  }
  return views;
}

/// Those that lie in the arena and that host nodes may be given.
std::vector<ArenaOutput> forHostNodes(const EntryCode& code, const Slab& slab,
                                      const std::vector<c10::IValue>& exported) {
  using Kind = Instruction::Kind;
  std::vector<ArenaOutput> found;
  const bool hasHostNodes = llvm::any_of(code.instructions, [](const Instruction& each) {
    return each.kind == Kind::Call || each.kind == Kind::Branch;
  });
  for (size_t output = 0; hasHostNodes && output < exported.size(); ++output) {
    const c10::IValue& value = exported[output];
    if (!value.isTensor() || !inSlab(value.toTensor(), &slab)) continue;
    const c10::Storage& storage = value.toTensor().storage();
    found.push_back({output, storage.data(), storage.nbytes()});
  }
  return found;
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
  for (ViewOfOperand& view : views) {
    if (std::exchange(view.of, nullptr) != nullptr)
      changeTensor(view, [](const at::Tensor& tensor) { return withoutOwner(tensor); });
  }
  memory->letGo();
}

bool CapturedPartition::holdAgain() { return memory->holdAgain(); }

void CapturedPartition::attach(ViewOfOperand& view, const at::Tensor& operand) {
  const c10::Storage& storage = operand.storage();
  const auto* first = static_cast<const char*>(operand.const_data_ptr());
  const int64_t offset = first - static_cast<const char*>(storage.data()) + view.distance;
  changeTensor(view, [&](const at::Tensor& tensor) {
    const auto size = static_cast<int64_t>(tensor.element_size());
    TORCH_INTERNAL_ASSERT(offset % size == 0, "a view of an operand lies between two elements");
    at::Tensor moved = shallowCopy(tensor, storage);
    moved.unsafeGetTensorImpl()->set_storage_offset(offset / size);
    return moved;
  });
  view.of = storage.unsafeGetStorageImpl();
}

void CapturedPartition::refill(const ArenaOutput& emptied) {
  const at::Tensor& tensor = exported[emptied.output].toTensor();
  c10::DataPtr memory(const_cast<void*>(emptied.memory), tensor.device());
  // As PyTorch makes one, so that it can be emptied again.
  const c10::Storage storage(c10::Storage::use_byte_size_t(), emptied.bytes, std::move(memory),
                             c10::GetAllocator(tensor.device().type()), /*resizable=*/true);
  exported[emptied.output] = shallowCopy(tensor, storage);
}

void CapturedPartition::changeTensor(const ViewOfOperand& view,
                                     llvm::function_ref<at::Tensor(const at::Tensor&)> change) {
  c10::IValue& value = exported[view.output];
  if (view.member < 0) {
    value = change(value.toTensor());
    return;
  }
  c10::List<at::Tensor> members = value.toTensorList().copy();  // somebody may hold the last step's
  members.set(view.member, change(members.get(view.member)));
  value = std::move(members);
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
  checkSeeds(launch, frame, device.tensorDevice());
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
  captured->views = viewsOf(launch, frame, slab, captured->exported);
  captured->forHostNodes = forHostNodes(code, slab, captured->exported);
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
