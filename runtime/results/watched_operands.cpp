#include "runtime/results/watched_operands.h"

#include "runtime/device/arena_session.h"
#include "runtime/results/results.h"

#include <llvm/ADT/DenseMap.h>

#include <algorithm>

namespace gravure {
namespace {

struct Watched {
  uint64_t watch;
  c10::Storage operand;
};

void tellSession(void* context) {
  const auto* watched = static_cast<Watched*>(context);
  ArenaSession::letGo(watched->watch, watched->operand.data());
  delete watched;
}

bool hasMemory(const at::Tensor& tensor) {
  return tensor.defined() && tensor.layout() == c10::kStrided && tensor.has_storage() &&
         tensor.storage().data() != nullptr;
}

c10::Storage watchedStorage(const c10::Storage& storage, uint64_t watch, size_t bytes) {
  void* const address = const_cast<void*>(storage.data());
  c10::DataPtr memory(address, new Watched{watch, storage}, &tellSession, storage.device());
  return c10::Storage(c10::Storage::use_byte_size_t(), bytes, std::move(memory),
                      /*allocator=*/nullptr, /*resizable=*/false);
}

}  // namespace

std::vector<at::Tensor> watchOperands(const std::vector<at::Tensor>& operands) {
  llvm::SmallDenseMap<const void*, size_t, 16> bytes;  // one memory may be several storages
  for (const at::Tensor& operand : operands) {
    if (!hasMemory(operand)) continue;
    size_t& most = bytes[operand.storage().data()];
    most = std::max(most, operand.storage().nbytes());
  }
  llvm::SmallDenseMap<const void*, c10::Storage, 16> storages;
  std::vector<at::Tensor> watched;
  watched.reserve(operands.size());
  for (const at::Tensor& operand : operands) {
    ArenaSession* session = hasMemory(operand) ? ArenaSession::of(operand.device()) : nullptr;
    const uint64_t watch = session ? session->watch() : 0;
    if (watch == 0) {
      watched.push_back(operand);
      continue;
    }
    const void* address = operand.storage().data();
    c10::Storage& storage = storages[address];
    if (!storage) storage = watchedStorage(operand.storage(), watch, bytes[address]);
    watched.push_back(shallowCopy(operand));
    watched.back().unsafeGetTensorImpl()->set_storage_keep_dtype(storage);
  }
  return watched;
}

bool isWatchedOperand(const at::Tensor& tensor) {
  return tensor.has_storage() && tensor.storage().data_ptr().get_deleter() == &tellSession;
}

}  // namespace gravure
