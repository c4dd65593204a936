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
/// nearly all steps, and takes a fifth of the time. False says nothing.
inline bool FlatGuards::isAsLast(const Guard& guard, const int64_t* shape,
                                 const c10::TensorImpl& tensor) {
  const c10::StorageImpl* const storage = TensorFields::storageOf(tensor);
  if (guard.memory == nullptr || !storage || storage->data() != guard.memory ||
      !TensorFields::hasWords(tensor, guard.words))
    return false;
  const c10::impl::SizesAndStrides& layout = TensorFields::layoutOf(tensor);
  if (layout.size() != guard.dims) return false;
  const int64_t *const size = layout.sizes_data(), *const stride = layout.strides_data();
  int64_t other = 0;
  for (uint32_t d = 0; d < guard.dims; ++d)
    other |= (size[d] ^ shape[d]) | (stride[d] ^ shape[guard.dims + d]);
  return other == 0;
}

void FlatGuards::noteLast(Guard& guard, const c10::TensorImpl& tensor) {
  guard.memory = nullptr;
  if (!TensorFields::hasPlainLayout(tensor)) return;
  guard.memory = tensor.unsafe_storage().data();
  guard.words = TensorFields::wordsOf(tensor);
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
  const size_t count = guards_.size();
  for (size_t g = 0; g < count; ++g) {
    if (g + kFarAhead < count) prefetchTensor(values[guards_[g + kFarAhead].index]);
    if (g + kNearAhead < count) prefetchStorage(values[guards_[g + kNearAhead].index]);
    Guard& guard = guards_[g];
    const c10::IValue& value = values[guard.index];
    if (!value.isTensor()) return false;
    const c10::TensorImpl& tensor = *value.unsafeToTensorImpl();
    if (!isAsLast(guard, shape, tensor)) {
      if (!holds(guard, shape, tensor)) return false;
      // What is copied lies elsewhere in each step: nothing is noted of it.
      if (!guard.copied) noteLast(guard, tensor);
    }
    shape += 2 * static_cast<size_t>(guard.dims);
  }
  return true;
}

}  // namespace gravure
