#pragma once
// Copies between tensors some of whose elements share a place in memory, as those of x.expand(4, 512),
// and copies that are made together.

#include <ATen/core/Tensor.h>
#include <llvm/ADT/SmallVector.h>

#include <vector>

namespace gravure {

/// True if both have the same sizes and strides.
bool sameLayout(const at::Tensor& a, const at::Tensor& b);
/// The same, but that a dimension of one element may have any stride.
bool isLaid(const at::Tensor& tensor, at::IntArrayRef sizes, at::IntArrayRef strides);

/// True if elements of such a layout share a place because a stride is 0: nothing may be copied there
/// element by element.
bool sharesPlaces(at::IntArrayRef sizes, at::IntArrayRef strides);

/// Copies `from` to `to` without waiting, each place once. Where places are shared, the layouts must be
/// equal: elements that share a place in `to` have one value only if they share one in `from`.
void copyPlaces(const at::Tensor& to, const at::Tensor& from);

/// Copies that do not depend on each other: one kernel for all of one dtype and device.
class CopyBatches {
 public:
  /// As copyPlaces(to, from), by run() at the latest.
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
