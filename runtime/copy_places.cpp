#include "runtime/copy_places.h"

namespace gravure {
namespace {

/// One element of each place: the first along every axis of stride 0.
at::Tensor placesOf(at::Tensor tensor) {
  for (int64_t axis = 0; axis < tensor.dim(); ++axis) {
    if (tensor.stride(axis) == 0 && tensor.size(axis) > 1) tensor = tensor.narrow(axis, 0, 1);
  }
  return tensor;
}

}  // namespace

bool sameLayout(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && a.strides() == b.strides();
}

bool sharesPlaces(at::IntArrayRef sizes, at::IntArrayRef strides) {
  for (size_t axis = 0; axis < sizes.size(); ++axis) {
    if (strides[axis] == 0 && sizes[axis] > 1) return true;
  }
  return false;
}

void copyPlaces(const at::Tensor& to, const at::Tensor& from) {
  if (!sharesPlaces(to.sizes(), to.strides())) {
    to.copy_(from, /*non_blocking=*/true);
    return;
  }
  TORCH_INTERNAL_ASSERT(sameLayout(to, from), "places that elements share, and another layout");
  placesOf(to).copy_(placesOf(from), /*non_blocking=*/true);
}

}  // namespace gravure
