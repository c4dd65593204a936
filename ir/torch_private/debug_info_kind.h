#pragma once
// Differs: what a kind of thread-local debug information is: a number, or the address of its name
// (2.13; asked of the type, not of the release).
//
// Without a kind of our own nobody could tell on a thread of autograd's that a step of ours is running.

#include <c10/util/ThreadLocalDebugInfo.h>

#include <string_view>
#include <type_traits>

namespace gravure::torch_private {

inline constexpr std::string_view kStepName = "GRAVURE_STEP";

/// A kind that PyTorch does not know, and so does not look for.
template <typename Kind = c10::DebugInfoKind>
constexpr Kind stepKind() {
  if constexpr (std::is_enum_v<Kind>) {
    return static_cast<Kind>(0xE7);
  } else {
    return Kind(&kStepName);
  }
}

}  // namespace gravure::torch_private
