#pragma once
// What becomes of a step's results: copies that are the caller's, or loans of the arena's memory.

#include "ir/core/program.h"
#include "runtime/device/device.h"
#include "runtime/results/loan_book.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <llvm/ADT/DenseMap.h>

#include <memory>

namespace gravure {

/// Lends, for one step, memory that the next step writes over: the arena's, or what a graph allocated
/// beside it. Each storage once, whatever views of it are lent.
class Lender {
 public:
  explicit Lender(std::shared_ptr<Slab> slab) : slab_(std::move(slab)) {}
  /// A tensor of its own over the memory of `tensor`, noted in `book`.
  at::Tensor lend(const at::Tensor& tensor, const std::shared_ptr<LoanBook>& book);
  /// The same for slab memory, and not a loan of its own: for who holds a lent tensor as long as this
  /// one. It is good for all steps of this arena.
  at::Tensor lendAlongside(const at::Tensor& tensor, const std::shared_ptr<LoanBook>& book) const;

 private:
  std::shared_ptr<Slab> slab_;
  llvm::SmallDenseMap<const void*, c10::Storage, 16> lent_;  // by address
};

/// True if the tensor's memory is the slab's.
bool inSlab(const at::Tensor& tensor, const Slab* slab);

/// True if a Lender made it, or it is a view of what one made.
bool isLent(const at::Tensor& tensor);

/// Notes in its book that `stream` reads what a Lender lent. False if `memory` was not lent.
bool noteReader(const c10::DataPtr& memory, c10::Stream stream);

/// The same view of lent or slab memory, holding the memory and nothing else: no loan.
at::Tensor unlent(const at::Tensor& tensor, const std::shared_ptr<Slab>& slab);

/// Another TensorImpl over the same memory, without autograd's marks.
at::Tensor shallowCopy(const at::Tensor& tensor);
/// The same over `storage`, which is another one of that memory.
at::Tensor shallowCopy(const at::Tensor& tensor, const c10::Storage& storage);
/// A storage of `memory`, whose bytes nobody resizes.
c10::Storage storageOver(c10::DataPtr memory, size_t bytes);
/// The same as shallowCopy() that does not keep the memory alive.
at::Tensor withoutOwner(const at::Tensor& tensor);

/// What is to be copied for the caller. As eager returns it (`asEager`): with its strides, and sharing
/// memory with the others of which that is said. Else in memory of its own, and strides are kept where
/// the tensor is dense: a gradient must not share memory with another one.
struct CopySource {
  at::Tensor tensor;
  bool asEager = false;
};

/// True for outputs that are copied as eager returns them. Gradients are not: autograd adds to them in
/// place.
inline bool isCopiedAsEager(OutputRole role) {
  return role == OutputRole::Output || role == OutputRole::Loss || role == OutputRole::Alias;
}

/// Copies in memory that is the caller's, in one batch a dtype. Call it where the allocator serves nothing from
/// the arena.
std::vector<at::Tensor> ownedCopies(const std::vector<CopySource>& sources);

}  // namespace gravure
