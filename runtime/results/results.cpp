#include "runtime/results/results.h"

#include "runtime/results/address_remainder.h"
#include "runtime/results/tensor_copies.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <c10/core/Allocator.h>
#include <c10/core/DeviceGuard.h>

#include <llvm/ADT/DenseMap.h>
#include <llvm/ADT/STLExtras.h>
#include <llvm/ADT/SmallVector.h>

namespace gravure {

struct Loan {
  std::shared_ptr<LoanBook> book;
  std::shared_ptr<void> memory;  // the slab, or the storage that memory beside it belongs to
  bool counts = true;            // as outstanding
  ~Loan() {
    if (counts) book->outstanding_.fetch_sub(1, std::memory_order_acq_rel);
  }
};

namespace {

void returnLoan(void* context) { delete static_cast<Loan*>(context); }

/// A storage of the same memory, which returns `loan` with its last holder.
c10::Storage storageOf(Loan* loan, const at::Tensor& tensor) {
  const c10::Storage& memory = tensor.storage();
  void* address = const_cast<void*>(memory.data());
  return storageOver({address, loan, &returnLoan, tensor.device()}, memory.nbytes());
}

/// A tensor like `tensor` over another storage of the same memory.
at::Tensor onStorage(c10::Storage storage, const at::Tensor& tensor) {
  auto other = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), tensor.key_set(),
                                                        tensor.dtype());
  other.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides(),
                                                     tensor.storage_offset());
  return other;
}

void dropMemory(void* context) { delete static_cast<std::shared_ptr<void>*>(context); }

}  // namespace

bool isLent(const at::Tensor& tensor) {
  return tensor.defined() && tensor.has_storage() &&
         tensor.storage().data_ptr().get_deleter() == &returnLoan;
}

bool noteReader(const c10::DataPtr& memory, c10::Stream stream) {
  if (memory.get_deleter() != &returnLoan) return false;
  static_cast<Loan*>(memory.get_context())->book->readOn(stream);
  return true;
}

at::Tensor unlent(const at::Tensor& tensor, const std::shared_ptr<Slab>& slab) {
  const c10::Storage& storage = tensor.storage();
  std::shared_ptr<void> memory = slab;
  if (isLent(tensor)) memory = static_cast<Loan*>(storage.data_ptr().get_context())->memory;
  c10::DataPtr held(const_cast<void*>(storage.data()), new std::shared_ptr<void>(std::move(memory)),
                    &dropMemory, tensor.device());
  return onStorage(storageOver(std::move(held), storage.nbytes()), tensor);
}

at::Tensor Lender::lend(const at::Tensor& tensor, const std::shared_ptr<LoanBook>& book) {
  const c10::Storage& memory = tensor.storage();
  c10::Storage& storage = lent_[memory.data()];
  if (!storage) {
    book->outstanding_.fetch_add(1, std::memory_order_acq_rel);
    std::shared_ptr<void> held = slab_;
    if (!inSlab(tensor, slab_.get())) held = std::make_shared<c10::Storage>(memory);
    storage = storageOf(new Loan{book, std::move(held)}, tensor);
  }
  return onStorage(storage, tensor);
}

at::Tensor Lender::lendAlongside(const at::Tensor& tensor,
                                 const std::shared_ptr<LoanBook>& book) const {
  return onStorage(storageOf(new Loan{book, slab_, /*counts=*/false}, tensor), tensor);
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

at::Tensor shallowCopy(const at::Tensor& tensor, const c10::Storage& storage) {
  at::Tensor copy = shallowCopy(tensor);
  copy.unsafeGetTensorImpl()->set_storage_keep_dtype(storage);
  return copy;
}

c10::Storage storageOver(c10::DataPtr memory, size_t bytes) {
  return c10::Storage(c10::Storage::use_byte_size_t(), bytes, std::move(memory),
                      /*allocator=*/nullptr, /*resizable=*/false);
}

at::Tensor withoutOwner(const at::Tensor& tensor) {
  const c10::Storage& storage = tensor.storage();
  c10::DataPtr memory(const_cast<void*>(storage.data()), storage.device());
  return shallowCopy(tensor, storageOver(std::move(memory), storage.nbytes()));
}

namespace {

/// All bytes of a storage, as a tensor with the keys of `like`.
at::Tensor bytesOf(const c10::Storage& storage, const at::Tensor& like) {
  auto bytes = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(storage), like.key_set(), c10::scalarTypeToTypeMeta(c10::ScalarType::Byte));
  bytes.unsafeGetTensorImpl()->set_sizes_contiguous(static_cast<int64_t>(storage.nbytes()));
  return bytes;
}

/// Memory that is written at once. ATen's own `empty` fills it first where algorithms must be
/// deterministic: a kernel more for each result.
at::Tensor unfilled(at::IntArrayRef sizes, at::IntArrayRef strides, c10::ScalarType dtype,
                    c10::Device device) {
  c10::OptionalDeviceGuard there;  // the allocator gives memory of the current device
  if (!device.is_cpu()) there.reset_device(device);
  const auto key = c10::computeDispatchKey(dtype, c10::kStrided, device);
  return at::detail::empty_strided_generic(sizes, strides, c10::GetAllocator(device.type()),
                                           c10::DispatchKeySet(key), dtype);
}

at::Tensor unfilledLike(const at::Tensor& tensor) {
  const auto strides = tensor.is_non_overlapping_and_dense()
                           ? tensor.strides().vec()
                           : at::infer_dense_strides(tensor.sizes(), tensor.strides());
  return unfilled(tensor.sizes(), strides, tensor.scalar_type(), tensor.device());
}

/// Copies of whole storages, one for all views of each.
class StorageCopies {
 public:
  explicit StorageCopies(const std::vector<CopySource>& sources) {
    for (const CopySource& source : sources) {
      if (source.asEager) ++views_[source.tensor.storage().data()];
    }
  }

  /// A copy of the tensor alone would lose memory that it shares, its strides, or where it lies.
  bool needed(const CopySource& source) const {
    return source.asEager &&
           (views_.lookup(source.tensor.storage().data()) > 1 ||
            !source.tensor.is_non_overlapping_and_dense() || addressRemainder(source.tensor) != 0);
  }

  /// The same view of the copy. The first one adds what is to be copied to the batch.
  at::Tensor view(const at::Tensor& tensor, CopyBatches& batches) {
    const c10::Storage& storage = tensor.storage();
    at::Tensor& copy = copies_[storage.data()];
    if (!copy.defined()) {
      copy = unfilled({static_cast<int64_t>(storage.nbytes())}, {1}, c10::ScalarType::Byte,
                      tensor.device());
      batches.add(copy, bytesOf(storage, copy));
    }
    return onStorage(copy.storage(), tensor);
  }

 private:
  llvm::SmallDenseMap<const void*, int64_t, 8> views_;
  llvm::SmallDenseMap<const void*, at::Tensor, 4> copies_;
};

}  // namespace

std::vector<at::Tensor> ownedCopies(const std::vector<CopySource>& results) {
  StorageCopies storages(results);
  std::vector<at::Tensor> copies;
  CopyBatches batches;
  copies.reserve(results.size());
  for (const CopySource& result : results) {
    if (storages.needed(result)) {
      copies.push_back(storages.view(result.tensor, batches));
    } else {
      copies.push_back(unfilledLike(result.tensor));
      batches.add(copies.back(), result.tensor);
    }
  }
  batches.run();
  return copies;
}

}  // namespace gravure
