#pragma once
// The gradients of some tensors as the inputs of a program, where they are of the kinds that it is for: a call
// that asks Python for each one's kind takes longer than the program does.

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/util/SmallVector.h>
#include <c10/util/typeid.h>

#include <optional>
#include <vector>

namespace gravure {

class GradientInputs {
 public:
  /// `examples`: plain tensors, which have strides; none is kept.
  explicit GradientInputs(const std::vector<at::Tensor>& examples);

  /// The gradients that `owners` have, in order; an owner may have none. Nothing where they are others than the
  /// examples in number, or one differs in its dtype, device, shape, strides or class of tensor.
  std::optional<std::vector<c10::IValue>> of(const std::vector<at::Tensor>& owners) const;

 private:
  struct Kind {
    explicit Kind(const at::Tensor& example);
    bool isOf(const at::Tensor& gradient) const;

    /// The class of tensor; conjugated and negated ones have keys of their own.
    c10::DispatchKeySet keys;
    caffe2::TypeMeta dtype;
    c10::Device device;
    c10::SmallVector<int64_t, 4> sizes, strides;
  };
  std::vector<Kind> kinds_;
};

}  // namespace gravure
