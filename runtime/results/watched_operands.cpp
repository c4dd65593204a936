#include "runtime/results/watched_operands.h"

#include "runtime/device/arena_session.h"
#include "runtime/results/results.h"

#include <c10/util/Exception.h>
#include <llvm/ADT/DenseMap.h>
#include <llvm/ADT/SmallVector.h>

#include <algorithm>
#include <utility>

namespace gravure {
namespace {

/// Storages of one memory. There may be several: of a tensor made over another one's bytes.
using Storages = llvm::SmallVector<c10::Storage, 1>;

/// Of a tensor that is handed over: what somebody who watches it takes away.
struct Handed {
  c10::Storage memory;
};

struct Watched {
  uint64_t watch;  // 0: nobody asked
  Storages memory;
};

void dropHanded(void* context) { delete static_cast<Handed*>(context); }

void tellSession(void* context) {
  const auto* watched = static_cast<Watched*>(context);
  if (watched->watch != 0) ArenaSession::letGo(watched->watch, watched->memory.front().data());
  delete watched;
}

bool hasMemory(const at::Tensor& tensor) {
  return tensor.defined() && tensor.layout() == c10::kStrided && tensor.has_storage() &&
         tensor.storage().data() != nullptr;
}

c10::Storage watchedStorage(Storages memory, uint64_t watch, size_t bytes) {
  const c10::Storage& first = memory.front();
  void* const address = const_cast<void*>(first.data());
  const c10::Device device = first.device();
  return storageOver({address, new Watched{watch, std::move(memory)}, &tellSession, device}, bytes);
}

/// Of a tensor that has memory; null if it was not handed over.
Handed* handedOf(const at::Tensor& tensor) {
  const c10::DataPtr& memory = tensor.storage().data_ptr();
  return memory.get_deleter() == &dropHanded ? static_cast<Handed*>(memory.get_context()) : nullptr;
}

/// What is watched at one address.
struct Memory {
  size_t bytes = 0;
  Storages storages;
  c10::Storage watched;  // over them, once a tensor needs it
};

}  // namespace

at::Tensor handOver(const at::Tensor& operand) {
  if (!hasMemory(operand)) return operand;
  const c10::Storage& storage = operand.storage();
  void* const address = const_cast<void*>(storage.data());
  return shallowCopy(
      operand,
      storageOver({address, new Handed{storage}, &dropHanded, storage.device()}, storage.nbytes()));
}

std::vector<at::Tensor> watchOperands(const std::vector<at::Tensor>& operands) {
  llvm::SmallDenseMap<const void*, Memory, 16> memories;  // by address
  for (const at::Tensor& operand : operands) {
    if (!hasMemory(operand)) continue;
    const c10::Storage& storage = operand.storage();
    Memory& memory = memories[storage.data()];
    memory.bytes = std::max(memory.bytes, storage.nbytes());
    Handed* const handed = handedOf(operand);
    if (!handed) {
      memory.storages.push_back(storage);
    } else if (handed->memory) {  // else an operand that comes twice
      memory.storages.push_back(std::exchange(handed->memory, {}));
    }
    TORCH_INTERNAL_ASSERT(!memory.storages.empty(), "an operand was watched twice");
  }
  std::vector<at::Tensor> watched;
  watched.reserve(operands.size());
  for (const at::Tensor& operand : operands) {
    if (!hasMemory(operand)) {
      watched.push_back(operand);
      continue;
    }
    ArenaSession* session = ArenaSession::of(operand.device());
    const uint64_t watch = session ? session->watch() : 0;
    if (watch == 0 && !handedOf(operand)) {
      watched.push_back(operand);
      continue;
    }
    Memory& memory = memories[operand.storage().data()];
    if (!memory.watched)
      memory.watched = watchedStorage(std::move(memory.storages), watch, memory.bytes);
    watched.push_back(shallowCopy(operand, memory.watched));
  }
  return watched;
}

bool isWatchedOperand(const at::Tensor& tensor) {
  return tensor.has_storage() && tensor.storage().data_ptr().get_deleter() == &tellSession;
}

}  // namespace gravure
