#pragma once
// Guards of many tensors, looked at in one pass.

#include "ir/torch_private/tensor_fields.h"
#include "runtime/program/guards.h"

#include <cstdint>
#include <vector>

namespace gravure {

/// Each is of one value in a list. Sizes and strides of all lie one behind the other, so that a pass reads
/// three arrays from the front to the end, and calls nothing for a plain tensor.
class FlatGuards {
 public:
  /// The tensor at `index` is that of `layout`.
  void add(size_t index, const OperandGuard::Layout& layout);
  /// The tensor at `index` may be copied to `buffer`: it has its dtype, device, sizes and, where there is
  /// more than one element along an axis, strides, and lies alike as far as kernels round by it.
  void addCopied(size_t index, const at::Tensor& buffer);

  bool hold(const std::vector<c10::IValue>& values) const;

 private:
  struct Guard {
    uint32_t index = 0, dims = 0;
    // By which the tensor that held last is known again; no memory where there was none yet.
    const void* memory = nullptr;  // of its storage
    FieldWords words = {};
    uintptr_t mask = 0, address = 0;  // of the address, the bits that matter, and what they are
    c10::DispatchKeySet reads;        // OperandGuard::Layout::reads
    c10::ScalarType dtype = c10::ScalarType::Undefined;
    c10::Device device = c10::kCPU;
    bool copied = false;
  };
  void add(const Guard& guard, at::IntArrayRef sizes, at::IntArrayRef strides);
  static bool isAsLast(const Guard& guard, const int64_t* shape, const c10::TensorImpl& tensor);
  static void noteLast(Guard& guard, const c10::TensorImpl& tensor);
  static bool holds(const Guard& guard, const int64_t* shape, const c10::TensorImpl& tensor);

  mutable std::vector<Guard> guards_;  // hold() notes what held
  std::vector<int64_t> shapes_;        // sizes, then strides, of each
};

}  // namespace gravure
