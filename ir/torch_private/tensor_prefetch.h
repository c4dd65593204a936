#pragma once
// What a tensor's fields lie in, fetched ahead: a loop over a thousand tensors waits for memory, and for
// little else.
//
// Private: where a tensor's version counter lies.
// Without it prefetchVersion() does nothing, and the loop takes longer. A wrong hint costs time alone.

#include <ATen/core/ivalue.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>

#include <cstddef>
#include <cstring>

namespace gravure {

// How many tensors ahead a loop fetches: far ahead the tensor itself; near ahead, where the tensor has
// come by then, what it points to.
inline constexpr size_t kFarAhead = 8, kNearAhead = 4;

inline void prefetchTensor(const c10::TensorImpl* tensor) {
  const char* const begin = reinterpret_cast<const char*>(tensor);
  for (size_t at = 0; at < sizeof(c10::TensorImpl); at += 64) __builtin_prefetch(begin + at);
}
inline void prefetchTensor(const c10::IValue& value) {
  if (value.isTensor()) prefetchTensor(value.unsafeToTensorImpl());
}

inline void prefetchStorage(const c10::IValue& value) {
  if (!value.isTensor()) return;
  // Where there is none this fetches nothing.
  __builtin_prefetch(value.unsafeToTensorImpl()->unsafe_storage().unsafeGetStorageImpl());
}

/// Fetched for writing.
inline void prefetchVersion(const c10::IValue& value) {
  if (!value.isTensor()) return;
  const void* counter = nullptr;
  static_assert(sizeof(c10::VariableVersion) == sizeof(counter));
  std::memcpy(&counter, &value.unsafeToTensorImpl()->version_counter(), sizeof(counter));
  __builtin_prefetch(counter, 1);
}

}  // namespace gravure
