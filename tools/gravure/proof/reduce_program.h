#pragma once
// Makes a program that fails smaller, while it fails.

#include "ir/core/program.h"

#include <functional>

namespace gravure::tool {

/// The smallest program that is found by taking away one thing after another (an entry, an output, a
/// node whose results one of its operands can stand for) for which `fails` holds. `fails` may throw:
/// then it does not hold.
Program reduced(Program program, const std::function<bool(const Program&)>& fails);

}  // namespace gravure::tool
