#pragma once
// What an input must be for the program (InputCheck), and for what was captured (OperandGuard).

#include "ir/core/program.h"
#include "runtime/device/device_map.h"

#include <ATen/core/ivalue.h>
#include <c10/core/UndefinedTensorImpl.h>

#include <optional>
#include <string>
#include <vector>

namespace gravure {

/// What the program's types ask of one entry input.
class InputCheck {
 public:
  InputCheck(const Entry& entry, size_t index, const DeviceMap& devices);

  /// TORCH_CHECK naming the input, what it should be and what it is. Sizes that the program leaves
  /// open are free.
  void check(const c10::IValue& value) const;

 private:
  void checkTensor(const at::Tensor& tensor) const;
  [[noreturn]] void fail(const std::string& expected, const std::string& found) const;

  std::string name_;  // "parameter \"layer.weight\" (input 3 of step)"
  c10::TypePtr type_;
  bool generator_ = false;
  bool kept_ = false;  // a parameter or buffer
  std::optional<c10::ScalarType> dtype_;
  std::optional<c10::Device> device_;
  std::optional<size_t> dims_;
  std::vector<int64_t> sizes_;  // -1: free
};

/// Whether a tensor's bytes are conjugated, or negated, when they are read.
inline c10::DispatchKeySet readsOf(const c10::TensorImpl& tensor) {
  constexpr c10::DispatchKeySet kReads({c10::DispatchKey::Conjugate, c10::DispatchKey::Negative});
  return tensor.key_set() & kReads;
}

/// Has the tensor's bytes read so, as readsOf() another says.
inline void setReads(const at::Tensor& tensor, c10::DispatchKeySet reads) {
  tensor._set_conj(reads.has(c10::DispatchKey::Conjugate));
  tensor._set_neg(reads.has(c10::DispatchKey::Negative));
}

/// `parameter "layer.weight" (input 3 of step)`.
std::string inputName(const Entry& entry, size_t index);

/// What was baked into a capture for one operand: another address, layout or value may not be replayed.
class OperandGuard {
 public:
  /// `keep`: hold the tensor's memory (it is not the arena's), so that no other tensor can come to lie
  /// at its address.
  OperandGuard(const c10::IValue& captured, bool keep);
  /// For a CPU tensor without dimensions that kernels take as a number: its address is free.
  static OperandGuard ofNumber(const at::Tensor& captured);
  /// For a tensor that its owner drops between steps, and that lies there again: a gradient. Its memory is
  /// not kept, or the next one could not lie there.
  static OperandGuard ofDropped(const at::Tensor& captured);

  /// Of a number: why replays cannot be given another one, for difference().
  void setReason(std::string why) { why_ = std::move(why); }

  bool holds(const c10::IValue& value) const {
    if (value.isTensor() && value.toTensor().unsafeGetTensorImpl() == same_) return true;
    return holdsSlowly(value);
  }
  /// What it compares a tensor with; nullptr where it guards something else, or a number.
  struct Layout {
    const void* address = nullptr;
    c10::ScalarType dtype = c10::ScalarType::Undefined;
    c10::Device device = c10::kCPU;
    std::vector<int64_t> sizes, strides;
    c10::DispatchKeySet reads;  // readsOf()
  };
  const Layout* layout() const { return tensor_ ? &layout_ : nullptr; }
  /// Same dtype, sizes and strides at another address.
  bool differsInAddressAlone(const c10::IValue& value) const;
  /// Same dtype and sizes, and other strides.
  bool differsInStrides(const c10::IValue& value) const;
  /// "expected address 0x…, found 0x…", for remarks; "" if it holds.
  std::string difference(const c10::IValue& value) const;

 private:
  bool holdsSlowly(const c10::IValue& value) const;
  bool sameLayout(const at::Tensor& tensor) const;

  OperandGuard() = default;

  // A tensor of the arena: where the runtime hands the same one on in each step, nothing else is looked
  // at. The weak reference keeps its address from being another tensor's.
  const c10::TensorImpl* same_ = nullptr;
  c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> sameAlive_{
      c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>()};
  bool tensor_ = false;
  Layout layout_;
  c10::Storage kept_;
  at::Tensor number_;  // a copy
  c10::IValue other_;  // a number, a generator, None
  std::string why_;    // setReason
};

/// "Float(2, 3, strides=[3, 1], device=cpu)" of a tensor; kind and value of anything else.
std::string describeValue(const c10::IValue& value);

}  // namespace gravure
