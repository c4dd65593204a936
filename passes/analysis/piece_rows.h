#pragma once
// Rows of contiguous tensors: what pieces of one tensor have each its own number of.

#include "ir/core/program.h"

#include <cstdint>
#include <optional>
#include <vector>

namespace gravure {

/// What is left of a contiguous tensor's type when its rows are not counted: sizes other than the
/// rows', then bytes of a row; nullopt for all others.
std::optional<std::vector<int64_t>> rowOf(const Value* value);
/// Equal in that, in dtype and in device. Both are tensors.
bool sameRow(const Value* a, const Value* b);

}  // namespace gravure
