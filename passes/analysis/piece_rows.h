#pragma once
// Rows of contiguous tensors: what stands at one index of the first dimension. Pieces of one tensor have
// its rows, each its own number of them.

#include "ir/core/program.h"

#include <cstdint>
#include <optional>
#include <vector>

namespace gravure {

/// What a row is, however many there are: the sizes of the other dimensions, the last one first, then the
/// row's bytes. nullopt unless the tensor is contiguous, has two dimensions or more, and a type that says
/// all of this, dtype and device.
std::optional<std::vector<int64_t>> rowOf(const Value* value);
/// True if the rows of two tensors, one of which has some, are equal in size, dtype and device.
bool sameRow(const Value* a, const Value* b);

}  // namespace gravure
