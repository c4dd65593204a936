#include "runtime/results.h"

#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/empty_like.h>

namespace gravure {
namespace {

struct Loan {
  std::shared_ptr<std::atomic<int64_t>> outstanding;
  std::shared_ptr<Slab> slab;
};

void returnLoan(void* context) {
  auto* loan = static_cast<Loan*>(context);
  loan->outstanding->fetch_sub(1, std::memory_order_acq_rel);
  delete loan;
}

/// A tensor like `tensor` over another storage of the same memory.
at::Tensor onStorage(c10::Storage storage, const at::Tensor& tensor) {
  auto other = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), tensor.key_set(),
                                                        tensor.dtype());
  other.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides(),
                                                     tensor.storage_offset());
  return other;
}

void dropSlab(void* context) { delete static_cast<std::shared_ptr<Slab>*>(context); }

}  // namespace

at::Tensor unlent(const at::Tensor& tensor, const std::shared_ptr<Slab>& slab) {
  const c10::Storage& storage = tensor.storage();
  c10::DataPtr memory(const_cast<void*>(storage.data()), new std::shared_ptr<Slab>(slab), &dropSlab,
                      tensor.device());
  return onStorage(c10::Storage(c10::Storage::use_byte_size_t(), storage.nbytes(),
                                std::move(memory),
                                /*allocator=*/nullptr, /*resizable=*/false),
                   tensor);
}

at::Tensor Lender::lend(const at::Tensor& tensor) {
  const c10::Storage& arena = tensor.storage();
  c10::Storage storage;
  for (const auto& [address, known] : lent_) {
    if (address == arena.data()) storage = known;
  }
  if (!storage) {
    book_->outstanding_.fetch_add(1, std::memory_order_acq_rel);
    auto count = std::shared_ptr<std::atomic<int64_t>>(book_, &book_->outstanding_);
    auto* loan = new Loan{std::move(count), slab_};
    void* address = const_cast<void*>(arena.data());
    storage = c10::Storage(c10::Storage::use_byte_size_t(), arena.nbytes(),
                           c10::DataPtr(address, loan, &returnLoan, tensor.device()),
                           /*allocator=*/nullptr, /*resizable=*/false);
    lent_.emplace_back(address, storage);
  }
  return onStorage(std::move(storage), tensor);
}

bool inSlab(const at::Tensor& tensor, const Slab* slab) {
  if (!slab || !tensor.defined() || !tensor.has_storage()) return false;
  const auto* address = static_cast<const char*>(tensor.storage().data());
  return address >= slab->base() && address < slab->base() + slab->bytes();
}

at::Tensor shallowCopy(const at::Tensor& tensor) {
  return at::Tensor(tensor.unsafeGetTensorImpl()->shallow_copy_and_detach(
      /*version_counter=*/c10::VariableVersion(0), /*allow_tensor_metadata_change=*/true));
}

std::vector<at::Tensor> ownedCopies(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> copies;
  copies.reserve(tensors.size());
  for (const at::Tensor& tensor : tensors) copies.push_back(at::empty_like(tensor));
  if (!copies.empty()) at::_foreach_copy_(copies, tensors);
  return copies;
}

}  // namespace gravure
