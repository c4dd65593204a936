#include "python/csrc/autograd/watched_values.h"

#include <algorithm>
#include <utility>

namespace gravure {

namespace {

uint32_t versionOf(const c10::IValue& value) {
  if (!value.isTensor() || !value.toTensor().defined() || value.toTensor().is_inference()) return 0;
  return static_cast<uint32_t>(value.toTensor()._version());
}

}  // namespace

WatchedValues::WatchedValues(std::vector<c10::IValue> all) : values(std::move(all)) {
  versions.reserve(values.size());
  for (const c10::IValue& value : values) versions.push_back(versionOf(value));
}

void WatchedValues::check() const {
  for (size_t i = 0; i < values.size(); ++i) {
    const uint32_t version = versionOf(values[i]);
    if (version == versions[i]) continue;
    const at::Tensor& tensor = values[i].toTensor();
    TORCH_CHECK(false,
                "one of the variables needed for gradient computation has been modified by "
                "an inplace operation: [",
                tensor.toString(), " ", tensor.sizes(), "] is at version ", version,
                "; expected version ", versions[i],
                " instead. Write into it after "
                "the backward");
  }
}

c10::IValue apartFrom(const c10::IValue& value, c10::ArrayRef<at::Tensor> outputs) {
  if (!value.isTensor()) return value;
  const at::Tensor& tensor = value.toTensor();
  const bool inside = tensor.is_view() && !tensor.requires_grad();
  const bool isOutput = std::any_of(outputs.begin(), outputs.end(),
                                    [&](const at::Tensor& each) { return each.is_same(tensor); });
  return inside || isOutput ? tensor.tensor_data() : tensor;
}

}  // namespace gravure
