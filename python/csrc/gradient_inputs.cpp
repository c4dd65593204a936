#include "python/csrc/gradient_inputs.h"

#include "ir/torch_private/tensor_prefetch.h"

#include <c10/core/TensorImpl.h>

namespace gravure {

GradientInputs::Kind::Kind(const at::Tensor& example)
    : keys(example.key_set()), dtype(example.dtype()), device(example.device()),
      sizes(example.sizes()), strides(example.strides()) {}

bool GradientInputs::Kind::isOf(const at::Tensor& gradient) const {
  return gradient.key_set() == keys && gradient.dtype() == dtype && gradient.device() == device &&
         gradient.sizes().equals(sizes) && gradient.strides().equals(strides);
}

GradientInputs::GradientInputs(const std::vector<at::Tensor>& examples)
    : kinds_(examples.begin(), examples.end()) {}

std::optional<std::vector<c10::IValue>>
GradientInputs::of(const std::vector<at::Tensor>& owners) const {
  std::vector<c10::IValue> gradients;
  gradients.reserve(kinds_.size() + 1);  // and a number
  for (const at::Tensor& owner : owners)
    if (const at::Tensor& gradient = owner.grad(); gradient.defined()) {
      prefetchTensor(gradient.unsafeGetTensorImpl());
      gradients.emplace_back(gradient);
    }
  if (gradients.size() != kinds_.size()) return std::nullopt;
  for (size_t i = 0; i < kinds_.size(); ++i)
    if (!kinds_[i].isOf(gradients[i].toTensor())) return std::nullopt;
  return gradients;
}

}  // namespace gravure
