#pragma once
// Compares values bit by bit.

#include <ATen/core/ivalue.h>

#include <string>

namespace gravure {

/// "" if `a` and `b` have the same dtype, shape, strides and bytes (NaN payloads and the sign of zero
/// included); else where they first differ, and how: "at [0, 5]: 0.5 (0x3f000000) and 0.25 (…)".
std::string firstDifference(const c10::IValue& a, const c10::IValue& b);

}  // namespace gravure
