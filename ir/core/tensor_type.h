#pragma once
// Types of tensors of which some sizes and strides may be unknown.

#include <ATen/core/jit_type.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace gravure {

/// Sizes or strides, each known or not.
using Dims = std::vector<std::optional<int64_t>>;

/// The tensor type with these sizes and strides, one of each a dimension. TensorType::create cannot make
/// one whose strides are known and a size is not. The reader of text makes its types here, too: equal ones
/// have one form.
c10::TensorTypePtr makeTensorType(std::optional<at::ScalarType> dtype,
                                  std::optional<c10::Device> device, const Dims& sizes,
                                  const Dims& strides, std::optional<bool> requiresGrad);
/// `type` with other sizes, one a dimension.
c10::TensorTypePtr withSizes(const c10::TensorType& type, const Dims& sizes);

}  // namespace gravure
