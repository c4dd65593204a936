#include "runtime/results/tensor_copies.h"

#include <ATen/ops/_foreach_copy.h>
#include <llvm/ADT/STLExtras.h>

namespace gravure {
namespace {

/// One element of each address: the first along every axis of stride 0.
at::Tensor withoutOverlap(at::Tensor tensor) {
  for (int64_t axis = 0; axis < tensor.dim(); ++axis) {
    if (tensor.stride(axis) == 0 && tensor.size(axis) > 1) tensor = tensor.narrow(axis, 0, 1);
  }
  return tensor;
}

}  // namespace

bool sameLayout(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && a.strides() == b.strides();
}

bool isLaid(const at::Tensor& tensor, at::IntArrayRef sizes, at::IntArrayRef strides) {
  if (tensor.sizes() != sizes) return false;
  for (size_t i = 0; i < strides.size(); ++i) {
    if (sizes[i] != 1 && tensor.stride(i) != strides[i]) return false;
  }
  return true;
}

bool overlapsItself(at::IntArrayRef sizes, at::IntArrayRef strides) {
  for (size_t axis = 0; axis < sizes.size(); ++axis) {
    if (strides[axis] == 0 && sizes[axis] > 1) return true;
  }
  return false;
}

void copyTensor(const at::Tensor& to, const at::Tensor& from) {
  if (!overlapsItself(to.sizes(), to.strides())) {
    to.copy_(from, /*non_blocking=*/true);
    return;
  }
  TORCH_INTERNAL_ASSERT(sameLayout(to, from), "it overlaps itself, and the other layout differs");
  withoutOverlap(to).copy_(withoutOverlap(from), /*non_blocking=*/true);
}

// A list of several dtypes or devices would be copied tensor by tensor. One kernel for all spares
// launches; what is large is copied faster alone, as memory (on an H200, at 4.3 and not 3 TB/s).
void CopyBatches::add(const at::Tensor& to, const at::Tensor& from) {
  const auto dtype = to.scalar_type();
  const auto device = to.device();
  const bool alike = from.scalar_type() == dtype && from.device() == device;
  constexpr size_t kLarge = size_t{8} << 20;
  const bool asItIs = !to.is_conj() && !to.is_neg() && !from.is_conj() && !from.is_neg();
  const bool alone = !alike || !asItIs || to.nbytes() >= kLarge;
  if (alone || overlapsItself(to.sizes(), to.strides())) return copyTensor(to, from);
  auto* batch = llvm::find_if(
      batches_, [&](const Batch& known) { return known.dtype == dtype && known.device == device; });
  if (batch == batches_.end()) batch = &batches_.emplace_back(Batch{dtype, device, {}, {}});
  batch->to.push_back(to);
  batch->from.push_back(from);
}

void CopyBatches::run() {
  for (Batch& batch : batches_) {
    if (batch.to.size() == 1) {
      batch.to.front().copy_(batch.from.front(), /*non_blocking=*/true);
    } else {
      at::_foreach_copy_(batch.to, batch.from, /*non_blocking=*/true);
    }
  }
  batches_.clear();
}

}  // namespace gravure
