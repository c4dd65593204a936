#pragma once
// What a tensor's own fields say, compared as words: a loop over a thousand tensors asks nothing else of most.
//
// Private: the members of a TensorImpl, and that four words of it follow each other: its offset, how many
// elements it has, its dtype, device and how these are asked for, and its dispatch keys.
// Without it each of them is asked for by a function of its own, which takes three times as long.

#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace gravure {

/// Of a tensor, but for its sizes, strides and storage.
using FieldWords = std::array<uint64_t, 4>;

/// The members are protected, and named here alone.
class TensorFields : public c10::TensorImpl {
 public:
  static FieldWords wordsOf(const c10::TensorImpl& tensor) {
    FieldWords words;
    std::memcpy(words.data(), firstOf(tensor), sizeof words);
    return words;
  }
  static bool hasWords(const c10::TensorImpl& tensor, const FieldWords& words) {
    const FieldWords now = wordsOf(tensor);
    return ((now[0] ^ words[0]) | (now[1] ^ words[1]) | (now[2] ^ words[2]) |
            (now[3] ^ words[3])) == 0;
  }

  static const c10::impl::SizesAndStrides& layoutOf(const c10::TensorImpl& tensor) {
    return tensor.*(&TensorFields::sizes_and_strides_);
  }
  /// Whether layoutOf() is what it answers when it is asked. The words say so, too: the same ones, the same
  /// answer.
  static bool hasPlainLayout(const c10::TensorImpl& tensor) {
    return !tensor.has_symbolic_sizes_strides() &&
           tensor.sizes().data() == layoutOf(tensor).sizes_data() &&
           tensor.strides().data() == layoutOf(tensor).strides_data();
  }
  /// nullptr where it has no storage.
  static const c10::StorageImpl* storageOf(const c10::TensorImpl& tensor) {
    return tensor.unsafe_storage().unsafeGetStorageImpl();
  }

 private:
  static const void* firstOf(const c10::TensorImpl& tensor) {
    const void* const first = &(tensor.*(&TensorFields::storage_offset_));
    const auto distance = [&](const void* member) {
      return static_cast<const char*>(member) - static_cast<const char*>(first);
    };
    static_assert(sizeof(c10::DispatchKeySet) == sizeof(uint64_t));
    // Known to the compiler, which leaves it out.
    if (distance(&(tensor.*(&TensorFields::key_set_))) != 24) std::abort();
    return first;
  }
};

}  // namespace gravure
