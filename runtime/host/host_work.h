#pragma once
// Captured calls as CUDA's kernels would show them: numbers among other bytes, and what cannot be read.

#include "runtime/device/captured_work.h"
#include "runtime/program/instruction.h"

namespace gravure {

/// The one node of a captured call: its numbers as doubles with 4 bytes of `paint` behind each, as a
/// struct's padding is. By a table of its own it has no readable bytes (products, as cuBLASLt's), a
/// number that is computed of others (the range of uniform_), or another function for some values (a
/// factor of 0, an exponent of 2).
WorkNode workOf(const Call& call, int32_t index, const torch::jit::Stack& operands, uint8_t paint);
/// Puts the numbers of such bytes into the operands.
void writeNumbers(torch::jit::Stack& operands, const uint8_t* bytes);

}  // namespace gravure
