#pragma once
// Copies between tensors that may overlap themselves, and copies that are made together.
//
// Terms. A tensor overlaps itself: several of its elements lie at one address, as those of
//   x.expand(4, 512) do.

#include <ATen/core/Tensor.h>
#include <llvm/ADT/SmallVector.h>

#include <vector>

namespace gravure {

/// True if both have the same sizes and strides.
bool sameLayout(const at::Tensor& a, const at::Tensor& b);
/// The same, but that a dimension of one element may have any stride.
bool isLaid(const at::Tensor& tensor, at::IntArrayRef sizes, at::IntArrayRef strides);

/// True if such a layout overlaps itself because a stride is 0: nothing may be copied there element by
/// element.
bool overlapsItself(at::IntArrayRef sizes, at::IntArrayRef strides);

/// Copies `from` to `to` without waiting, each address once. Where `to` overlaps itself, the layouts must
/// be equal: elements at one address of `to` have one value only if they lie at one in `from`.
void copyTensor(const at::Tensor& to, const at::Tensor& from);

/// Copies that do not depend on each other: one kernel for all of one dtype and device.
class CopyBatches {
 public:
  /// As copyTensor(to, from), by run() at the latest.
  void add(const at::Tensor& to, const at::Tensor& from);
  void run();

 private:
  struct Batch {
    c10::ScalarType dtype;
    c10::Device device;
    std::vector<at::Tensor> to, from;
  };
  llvm::SmallVector<Batch, 4> batches_;
};

}  // namespace gravure
