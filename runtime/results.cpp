#include "runtime/results.h"

#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/empty_like.h>

#include <llvm/ADT/STLExtras.h>

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

at::Tensor Lender::lend(const at::Tensor& tensor, const std::shared_ptr<LoanBook>& book) {
  const c10::Storage& arena = tensor.storage();
  c10::Storage storage;
  for (const auto& [address, known] : lent_) {
    if (address == arena.data()) storage = known;
  }
  if (!storage) {
    book->outstanding_.fetch_add(1, std::memory_order_acq_rel);
    auto count = std::shared_ptr<std::atomic<int64_t>>(book, &book->outstanding_);
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
  // A list of several dtypes or devices is copied tensor by tensor.
  using Kind = std::pair<c10::ScalarType, c10::Device>;
  llvm::SmallVector<std::pair<Kind, std::vector<size_t>>, 4> batches;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Kind kind{tensors[i].scalar_type(), tensors[i].device()};
    auto* batch = llvm::find_if(batches, [&](const auto& known) { return known.first == kind; });
    if (batch == batches.end()) batch = &batches.emplace_back(kind, std::vector<size_t>());
    batch->second.push_back(i);
  }
  for (const auto& [kind, members] : batches) {
    std::vector<at::Tensor> to, from;
    for (size_t i : members) {
      to.push_back(copies[i]);
      from.push_back(tensors[i]);
    }
    at::_foreach_copy_(to, from, /*non_blocking=*/true);
  }
  return copies;
}

}  // namespace gravure
