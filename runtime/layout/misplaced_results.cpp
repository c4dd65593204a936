#include "runtime/layout/misplaced_results.h"

#include "runtime/results/results.h"
#include "runtime/results/tensor_copies.h"

#include <ATen/ops/empty_strided.h>

namespace gravure {
namespace {

bool isMisplaced(const at::Tensor& tensor, const RecordedTensor* recorded,
                 const PlannedAllocation* row, const Slab& slab) {
  if (!inSlab(tensor, &slab)) return false;
  if (recorded == nullptr) return true;
  if (recorded->ordinal < 0) return false;  // it shares an operand's memory
  const int64_t offset = recorded->row < 0 ? -1 : row[recorded->row].offset;
  return offset < 0 || tensor.storage().data() != slab.base() + offset;
}

/// visit(tensor) -> the tensor to put in its place.
template <typename Visit>
void forEachTensor(torch::jit::Stack& stack, Visit&& visit) {
  for (c10::IValue& value : stack) {
    if (value.isTensor() && value.toTensor().defined()) {
      value = visit(value.toTensor());
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> list = value.toTensorList();
      for (size_t i = 0; i < list.size(); ++i) list.set(i, visit(list.get(i)));
    }
  }
}

/// The recorded tensors of `call`, one after another; nullptr where it returned fewer than now.
class InOrder {
 public:
  explicit InOrder(const Call& call) : tensors_(call.recorded.tensors) {}
  const RecordedTensor* next() { return at_ < tensors_.size() ? &tensors_[at_++] : nullptr; }

 private:
  const std::vector<RecordedTensor>& tensors_;
  size_t at_ = 0;
};

}  // namespace

bool anyMisplaced(const Call& call, const torch::jit::Stack& stack, const ArenaSession& session) {
  if (call.position < 0 || !call.recorded.recorded) return false;
  const PlannedAllocation* row = (*session.plan())[call.position].data();
  InOrder recorded(call);
  bool found = false;
  for (const c10::IValue& value : stack) {
    if (value.isTensor() && value.toTensor().defined()) {
      found |= isMisplaced(value.toTensor(), recorded.next(), row, *session.slab());
    } else if (value.isTensorList()) {
      for (const c10::IValue& member : value.toListRef())
        found |= isMisplaced(member.toTensor(), recorded.next(), row, *session.slab());
    }
  }
  return found;
}

void copyMisplaced(const Call& call, torch::jit::Stack& stack, ArenaSession& session) {
  const PlannedAllocation* row = (*session.plan())[call.position].data();
  session.leaveCall();
  InOrder recorded(call);
  forEachTensor(stack, [&](const at::Tensor& tensor) {
    if (!isMisplaced(tensor, recorded.next(), row, *session.slab())) return tensor;
    at::Tensor copy = at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options());
    copyTensor(copy, tensor);
    return copy;
  });
}

}  // namespace gravure
