#include "python/csrc/update_inputs.h"

#include "ir/torch_private/tensor_prefetch.h"

#include <c10/core/TensorImpl.h>
#include <c10/util/Exception.h>

#include <utility>

namespace gravure {

UpdateInputs::UpdateInputs(std::vector<c10::IValue> values, std::vector<int64_t> gradients,
                           std::vector<int64_t> owners, std::vector<int64_t> numbers,
                           std::vector<int64_t> counters, std::vector<at::Tensor> without,
                           std::string name)
    : values_(std::move(values)), numbers_(std::move(numbers)), counters_(std::move(counters)),
      without_(std::move(without)), name_(std::move(name)) {
  TORCH_CHECK(gradients.size() == owners.size(), "keep_update: ", gradients.size(),
              " gradients of ", owners.size(), " tensors");
  const auto check = [&](int64_t at) {
    TORCH_CHECK(at >= 0 && at < static_cast<int64_t>(values_.size()),
                "keep_update: there is no input at position ", at);
  };
  for (size_t i = 0; i < owners.size(); ++i) {
    check(owners[i]);
    check(gradients[i]);
    TORCH_CHECK(values_[owners[i]].isTensor(), "keep_update: input ", owners[i],
                " is not bound to a tensor");
    gradients_.push_back(
        {static_cast<size_t>(gradients[i]), values_[owners[i]].toTensor().unsafeGetTensorImpl()});
  }
  for (const int64_t at : numbers_) check(at);
  for (const int64_t at : counters_) check(at);
}

bool UpdateInputs::take(const std::vector<double>& numbers) {
  if (numbers.size() != numbers_.size()) return false;
  for (const at::Tensor& tensor : without_)
    if (tensor.unsafeGetTensorImpl()->grad().defined()) return false;
  const size_t count = gradients_.size();
  for (size_t i = 0; i < count; ++i) {
    if (i + kFarAhead < count) __builtin_prefetch(gradients_[i + kFarAhead].owner);
    if (i + kNearAhead < count)
      __builtin_prefetch(gradients_[i + kNearAhead].owner->autograd_meta());
    const at::Tensor& gradient = gradients_[i].owner->grad();
    if (!gradient.defined()) return false;
    prefetchTensor(gradient.unsafeGetTensorImpl());
    values_[gradients_[i].input] = gradient;
  }
  for (size_t i = 0; i < numbers.size(); ++i) values_[numbers_[i]] = numbers[i];
  return true;
}

void UpdateInputs::drop() {
  for (const Gradient& each : gradients_) values_[each.input] = c10::IValue();
}

}  // namespace gravure
