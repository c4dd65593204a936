#pragma once
// Types of values as program text has them.

#include <ATen/core/jit_type.h>

#include <string>

namespace gravure {

/// "Float(2, 3, strides=[3, 1], device=cuda:0)"
std::string typeText(const c10::Type& type);

}  // namespace gravure
