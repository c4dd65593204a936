#pragma once
// New values for a step's inputs: alike in kind, never the same twice, the same for the same seed.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace gravure::tool {

/// A tensor of the shape, strides and dtype of `original` (on the CPU) with other contents:
/// - floats: normal with the original's mean and deviation, kept within its range; one that is
///   constant is scaled by up to a tenth, all zeros become standard normal;
/// - ints: drawn from the original's range; bools: the original's, permuted.
/// Kept as they are: floats that are not finite (masks), strictly increasing ints (positions,
/// offsets), tensors that overlap themselves.
at::Tensor drawLike(const at::Tensor& original, uint64_t seed);

/// Values for a tensor of which only the type is known: floats as drawLike draws for zeros, ints
/// and bools 0 or 1.
at::Tensor drawFresh(at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType dtype,
                     uint64_t seed);

/// One seed for each (seed, step, name).
uint64_t mixSeed(uint64_t seed, int64_t step, const std::string& name);

}  // namespace gravure::tool
