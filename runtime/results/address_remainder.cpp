#include "runtime/results/address_remainder.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ops/empty_strided.h>

namespace gravure {

bool roundsByAddress(const at::Tensor& tensor) {
  const bool rounds = tensor.defined() && (tensor.is_floating_point() || tensor.is_complex());
  return rounds && tensor.has_storage() && tensor.numel() != 0;
}

int64_t addressRemainder(const at::Tensor& tensor) {
  if (!roundsByAddress(tensor)) return 0;
  return static_cast<int64_t>(reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) % kRoundedBytes);
}

at::Tensor emptyAlike(const at::Tensor& tensor) {
  const int64_t remainder = addressRemainder(tensor);
  const auto size = static_cast<int64_t>(tensor.element_size());
  if (remainder == 0 || remainder % size != 0)
    return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options());
  const int64_t offset = remainder / size;
  const auto bytes = static_cast<int64_t>(
      at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), size, offset));
  return at::empty_strided({bytes / size}, {1}, tensor.options())
      .as_strided(tensor.sizes(), tensor.strides(), offset);
}

}  // namespace gravure
