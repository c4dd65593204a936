#pragma once
// Where a tensor lies, as far as kernels round by it.
//
// Kernels of products and sums choose by the address of an operand how they go through memory, and so in
// which order they add (seen of MKL's products of float on an AMD EPYC). At multiples of 16 bytes they
// choose alike (tests/cuda/alignment.py). A copy that stands for a caller's tensor lies as that does.

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace gravure {

/// At multiples of so many bytes.
constexpr int64_t kRoundedBytes = 16;
/// False for dtypes that do not round, and without memory.
bool roundsByAddress(const at::Tensor& tensor);
/// Bytes past a multiple of 16, below 16. 0 where it does not round.
int64_t addressRemainder(const at::Tensor& tensor);

/// New memory for a tensor of the same sizes, strides, dtype and device, with the same remainder.
at::Tensor emptyAlike(const at::Tensor& tensor);

}  // namespace gravure
