#include "ir/core/tensor_type.h"

#include <algorithm>

namespace gravure {

c10::TensorTypePtr makeTensorType(std::optional<at::ScalarType> dtype,
                                  std::optional<c10::Device> device, const Dims& sizes,
                                  const Dims& strides, std::optional<bool> requiresGrad) {
  TORCH_INTERNAL_ASSERT(sizes.size() == strides.size());
  const auto known = [](const std::optional<int64_t>& dim) { return dim.has_value(); };
  if (std::all_of(sizes.begin(), sizes.end(), known) &&
      std::all_of(strides.begin(), strides.end(), known)) {
    // The form that types of real tensors have: strides in their order of size.
    return c10::TensorType::create(dtype, device, c10::VaryingShape<int64_t>(sizes),
                                   c10::VaryingShape<int64_t>(strides), requiresGrad);
  }
  std::vector<std::optional<c10::Stride>> properties(sizes.size());
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (strides[i]) properties[i] = c10::Stride(i, std::nullopt, static_cast<size_t>(*strides[i]));
  }
  return c10::TensorType::create(dtype, device, c10::SymbolicShape(sizes),
                                 c10::VaryingShape<c10::Stride>(std::move(properties)),
                                 requiresGrad);
}

c10::TensorTypePtr withSizes(const c10::TensorType& type, const Dims& sizes) {
  TORCH_INTERNAL_ASSERT(type.dim() == sizes.size());
  Dims strides;
  for (size_t d = 0; d < sizes.size(); ++d) strides.push_back(type.strides()[d]);
  return makeTensorType(type.scalarType(), type.device(), sizes, strides, type.requiresGrad());
}

}  // namespace gravure
