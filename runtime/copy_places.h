#pragma once
// Copies between tensors some of whose elements share a place in memory, as those of x.expand(4, 512).

#include <ATen/core/Tensor.h>

namespace gravure {

/// True if both have the same sizes and strides.
bool sameLayout(const at::Tensor& a, const at::Tensor& b);

/// True if elements of such a layout share a place because a stride is 0: nothing may be copied there
/// element by element.
bool sharesPlaces(at::IntArrayRef sizes, at::IntArrayRef strides);

/// Copies `from` to `to` without waiting, each place once. Where places are shared, the layouts must be
/// equal: elements that share a place in `to` have one value only if they share one in `from`.
void copyPlaces(const at::Tensor& to, const at::Tensor& from);

}  // namespace gravure
