#include "runtime/program/flat_guards.h"

#include "ir/torch_private/tensor_prefetch.h"
#include "runtime/results/address_remainder.h"

#include <algorithm>

namespace gravure {

void FlatGuards::add(const Guard& guard, at::IntArrayRef sizes, at::IntArrayRef strides) {
  guards_.push_back(guard);
  guards_.back().dims = static_cast<uint32_t>(sizes.size());
  shapes_.insert(shapes_.end(), sizes.begin(), sizes.end());
  shapes_.insert(shapes_.end(), strides.begin(), strides.end());
}

void FlatGuards::add(size_t index, const OperandGuard::Layout& layout) {
  Guard guard;
  guard.index = static_cast<uint32_t>(index);
  guard.dtype = layout.dtype;
  guard.device = layout.device;
  guard.mask = ~uintptr_t{0};
  guard.reads = layout.reads;
  guard.address = reinterpret_cast<uintptr_t>(layout.address);
  add(guard, layout.sizes, layout.strides);
}

void FlatGuards::addCopied(size_t index, const at::Tensor& buffer) {
  Guard guard;
  guard.index = static_cast<uint32_t>(index);
  guard.dtype = buffer.scalar_type();
  guard.device = buffer.device();
  guard.reads = readsOf(*buffer.unsafeGetTensorImpl());
  if (roundsByAddress(buffer)) {
    guard.mask = kRoundedBytes - 1;
    guard.address = reinterpret_cast<uintptr_t>(buffer.const_data_ptr()) & guard.mask;
  }
  guard.copied = true;
  add(guard, buffer.sizes(), buffer.strides());
}

/// Whether a tensor has all fields of the one that held last, so that holds() would say yes again. It is so in
/// nearly all steps, and takes a third of the time. False says nothing.
inline bool FlatGuards::isAsLast(const Guard& guard, const int64_t* shape,
                                 const c10::TensorImpl& tensor) {
  if (tensor.key_set() != guard.keys || tensor.dtype() != guard.type || !tensor.has_storage())
    return false;
  const c10::StorageImpl& storage = *tensor.unsafe_storage().unsafeGetStorageImpl();
  const at::IntArrayRef sizes = tensor.sizes(), strides = tensor.strides();
  if (storage.data() != guard.memory || tensor.storage_offset() != guard.offset ||
      sizes.size() != guard.dims || tensor.device() != guard.device)
    return false;
  const int64_t *const size = sizes.data(), *const stride = strides.data();
  for (uint32_t d = 0; d < guard.dims; ++d)
    if (size[d] != shape[d] || stride[d] != shape[guard.dims + d]) return false;
  return guard.memory != nullptr;
}

/// What is copied lies elsewhere in each step: nothing is noted of it.
void FlatGuards::noteLast(Guard& guard, const c10::TensorImpl& tensor) {
  if (guard.copied) return;
  guard.type = tensor.dtype();
  guard.keys = tensor.key_set();
  guard.memory = tensor.unsafe_storage().data();
  guard.offset = tensor.storage_offset();
}

bool FlatGuards::holds(const Guard& guard, const int64_t* shape, const c10::TensorImpl& tensor) {
  if (!tensor.has_storage() || c10::typeMetaToScalarType(tensor.dtype()) != guard.dtype ||
      tensor.device() != guard.device)
    return false;
  if (readsOf(tensor) != guard.reads) return false;
  const at::IntArrayRef sizes = tensor.sizes();
  if (sizes.size() != guard.dims || !std::equal(sizes.begin(), sizes.end(), shape)) return false;
  const at::IntArrayRef strides = tensor.strides();
  for (size_t d = 0; d < guard.dims; ++d) {
    const bool free = guard.copied && sizes[d] == 1;
    if (strides[d] != shape[guard.dims + d] && !free) return false;
  }
  if (guard.mask == 0) return true;
  return (reinterpret_cast<uintptr_t>(tensor.data()) & guard.mask) == guard.address;
}

bool FlatGuards::hold(const std::vector<c10::IValue>& values) const {
  const int64_t* shape = shapes_.data();
  for (size_t g = 0; g < guards_.size(); ++g) {
    Guard& guard = guards_[g];
    if (g + kFarAhead < guards_.size()) prefetchTensor(values[guards_[g + kFarAhead].index]);
    if (g + kNearAhead < guards_.size()) prefetchStorage(values[guards_[g + kNearAhead].index]);
    const c10::IValue& value = values[guard.index];
    if (!value.isTensor()) return false;
    const c10::TensorImpl& tensor = *value.toTensor().unsafeGetTensorImpl();
    if (!isAsLast(guard, shape, tensor)) {
      if (!holds(guard, shape, tensor)) return false;
      noteLast(guard, tensor);
    }
    shape += 2 * static_cast<size_t>(guard.dims);
  }
  return true;
}

}  // namespace gravure
