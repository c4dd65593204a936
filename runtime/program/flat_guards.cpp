#include "runtime/program/flat_guards.h"

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
  if (roundsByAddress(buffer)) {
    guard.mask = kRoundedBytes - 1;
    guard.address = reinterpret_cast<uintptr_t>(buffer.const_data_ptr()) & guard.mask;
  }
  guard.copied = true;
  add(guard, buffer.sizes(), buffer.strides());
}

namespace {

void prefetch(const c10::IValue& value) {
  if (!value.isTensor()) return;
  const char* const tensor = reinterpret_cast<const char*>(value.toTensor().unsafeGetTensorImpl());
  for (size_t at = 0; at < sizeof(c10::TensorImpl); at += 64) __builtin_prefetch(tensor + at);
}

void prefetchStorage(const c10::IValue& value) {
  if (!value.isTensor()) return;
  const c10::TensorImpl& tensor = *value.toTensor().unsafeGetTensorImpl();
  if (tensor.has_storage()) __builtin_prefetch(tensor.unsafe_storage().unsafeGetStorageImpl());
}

}  // namespace

bool FlatGuards::holds(const Guard& guard, const int64_t* shape, const c10::TensorImpl& tensor) {
  if (!tensor.has_storage() || c10::typeMetaToScalarType(tensor.dtype()) != guard.dtype ||
      tensor.device() != guard.device)
    return false;
  if (!guard.copied && readsOf(tensor) != guard.reads) return false;
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
  constexpr size_t kAhead = 8, kNear = 4;  // tensors, and what they point to, lie anywhere
  const int64_t* shape = shapes_.data();
  for (size_t g = 0; g < guards_.size(); ++g) {
    const Guard& guard = guards_[g];
    if (g + kAhead < guards_.size()) prefetch(values[guards_[g + kAhead].index]);
    if (g + kNear < guards_.size()) prefetchStorage(values[guards_[g + kNear].index]);
    const c10::IValue& value = values[guard.index];
    if (!value.isTensor()) return false;
    const c10::TensorImpl& tensor = *value.toTensor().unsafeGetTensorImpl();
    if (!holds(guard, shape, tensor)) return false;
    shape += 2 * static_cast<size_t>(guard.dims);
  }
  return true;
}

}  // namespace gravure
