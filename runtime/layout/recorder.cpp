#include "runtime/layout/recorder.h"

#include <llvm/ADT/STLExtras.h>

#include <algorithm>
#include <map>

namespace gravure {

int64_t byteOffset(const at::Tensor& tensor) {
  return tensor.storage_offset() * static_cast<int64_t>(tensor.itemsize());
}

void Recorder::before(const Call& call, const Frame& frame) {
  operands_.clear();
  for (const Operand& operand : call.operands) note(operand, frame);
}

void Recorder::note(const Operand& operand, const Frame& frame) {
  switch (operand.kind) {
    case Operand::Kind::Constant: noteValue(operand.constant, kNoSlot); break;
    case Operand::Kind::FromSlot:
      if (operand.use == NumberUse::Tensor && !frame[operand.slot].isTensor()) {
        operands_.push_back({{}, 0, kNoSlot});  // becomes a tensor of its own
      } else {
        noteValue(frame[operand.slot], operand.slot);
      }
      break;
    default:
      for (const Operand& member : operand.members) note(member, frame);
  }
}

void Recorder::noteValue(const c10::IValue& value, Slot slot) {
  if (value.isTensor()) {
    const at::Tensor& tensor = value.toTensor();
    if (!tensor.defined()) return;
    const bool hasStorage = tensor.has_storage();
    operands_.push_back({hasStorage ? tensor.storage() : c10::Storage(),
                         hasStorage ? byteOffset(tensor) : 0, slot});
  } else if (value.isList()) {
    for (const c10::IValue& member : value.toListRef()) noteValue(member, slot);
  }
}

RecordedTensor Recorder::describeTensor(const at::Tensor& tensor) const {
  RecordedTensor recorded;
  recorded.dtype = tensor.scalar_type();
  recorded.plain =
      tensor.layout() == c10::kStrided && tensor.has_storage() && !tensor.is_quantized();
  if (!recorded.plain) return recorded;
  recorded.conjugate = tensor.is_conj();
  recorded.negative = tensor.is_neg();
  recorded.sizes = tensor.sizes().vec();
  recorded.strides = tensor.strides().vec();
  c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  recorded.storageBytes = static_cast<int64_t>(storage->nbytes());
  recorded.byteOffset = byteOffset(tensor);
  for (size_t i = 0; i < operands_.size(); ++i) {
    if (operands_[i].storage.unsafeGetStorageImpl() != storage) continue;
    recorded.operand = static_cast<int32_t>(i);
    recorded.operandSlot = operands_[i].slot;
    recorded.byteOffset -= operands_[i].byteOffset;
    return recorded;
  }
  recorded.ordinal = session_.ordinalOf(storage->data());
  return recorded;
}

/// `before`: the same call in the run before, if there was one.
std::vector<LetGo> Recorder::operandsLetGo(const RecordedCall& before) const {
  std::map<Slot, int64_t> found;  // of several tensors in a slot, the last one counts
  for (const Held& operand : operands_) {
    if (!operand.storage || operand.slot == kNoSlot) continue;
    const int64_t last = session_.letGoBefore(operand.storage.data());
    int64_t& latest = found[operand.slot];
    latest = std::max(latest, last < 0 ? LetGo::kNever : last);
  }
  std::vector<LetGo> letGo;
  for (const auto& [slot, last] : found) {
    if (last == LetGo::kNever) continue;
    letGo.push_back({slot, last, last});
    if (!before.recorded) continue;
    const auto at =
        llvm::find_if(before.letGo, [&](const LetGo& each) { return each.slot == slot; });
    letGo.back().before = at == before.letGo.end() ? LetGo::kNever : std::max(at->last, last);
  }
  return letGo;
}

void Recorder::after(Call& call, const torch::jit::Stack& stack) {
  RecordedCall recorded;
  recorded.recorded = true;
  /// The output that a return is.
  const auto first = [&](size_t r) {
    return call.unpacked && r > call.unpacked->at ? r + call.unpacked->members - 1 : r;
  };
  for (size_t r = 0; r < stack.size(); ++r) {
    const c10::IValue& result = stack[r];
    const auto add = [&](const at::Tensor& tensor, size_t output) {
      recorded.tensors.push_back(describeTensor(tensor));
      recorded.tensors.back().output = static_cast<int32_t>(output);
    };
    if (result.isNone()) {
      recorded.shape.push_back(RecordedCall::kNone);
    } else if (result.isTensor() && !result.toTensor().defined()) {
      recorded.shape.push_back(RecordedCall::kUndefinedTensor);
    } else if (result.isTensor()) {
      recorded.shape.push_back(RecordedCall::kTensor);
      add(result.toTensor(), first(r));
    } else if (result.isTensorList()) {
      const auto members = result.toTensorVector();
      recorded.shape.push_back(static_cast<int32_t>(members.size()));
      const bool apart = call.unpacked && call.unpacked->at == r;
      for (size_t i = 0; i < members.size(); ++i) add(members[i], apart ? r + i : first(r));
    } else {
      recorded.returnsOther = true;
      recorded.shape.push_back(RecordedCall::kNone);
    }
  }
  recorded.letGo = operandsLetGo(call.recorded);
  call.recorded = std::move(recorded);
  operands_.clear();
}

}  // namespace gravure
