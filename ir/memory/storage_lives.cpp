#include "ir/memory/storage_lives.h"

#include "ir/facts/value_types.h"

namespace gravure {
namespace {

bool livesToTheEnd(const StorageAccesses& accesses, int32_t storage) {
  return accesses.isHeld(storage) || accesses.isLeftOpen(storage);
}

}  // namespace

std::vector<Life> livesInProgramOrder(const StorageAccesses& accesses) {
  const int32_t nodes = accesses.numbering().size();
  std::vector<Life> lives(accesses.storageCount());
  for (int32_t s = 0; s < accesses.storageCount(); ++s) {
    if (accesses.makerOf(s) >= 0) lives[s].add(accesses.makerOf(s));
  }
  for (int32_t i = 0; i < nodes; ++i) {
    accesses.forEachInUse(i, [&](int32_t storage) { lives[storage].add(i); });
  }
  accesses.forEachCopied([&](int32_t storage, int32_t position) { lives[storage].add(position); });
  for (int32_t s = 0; s < accesses.storageCount(); ++s) {
    if (livesToTheEnd(accesses, s)) lives[s].end = nodes;
  }
  return lives;
}

LiveBytes::LiveBytes(const StorageAccesses& accesses) {
  std::vector<int32_t> sized(accesses.storageCount(), -1);
  for (int32_t s = 0; s < accesses.storageCount(); ++s) {
    if (accesses.makerOf(s) < 0) continue;
    const auto bytes = storageBytes(*accesses.firstOf(s)->type());
    if (!bytes || *bytes == 0) continue;
    sized[s] = static_cast<int32_t>(bytes_.size());
    bytes_.push_back(*bytes);
    toTheEnd_.push_back(livesToTheEnd(accesses, s));
  }
  const int32_t nodes = accesses.numbering().size();
  begin_.reserve(nodes + 1);
  for (int32_t i = 0; i < nodes; ++i) {
    begin_.push_back(static_cast<int32_t>(inUse_.size()));
    accesses.forEachInUse(i, [&](int32_t storage) {
      if (sized[storage] >= 0) inUse_.push_back(sized[storage]);
    });
  }
  begin_.push_back(static_cast<int32_t>(inUse_.size()));
}

int64_t LiveBytes::peak(llvm::ArrayRef<int32_t> order) const {
  const auto end = static_cast<int32_t>(order.size());
  std::vector<Life> lives(bytes_.size());
  for (int32_t position = 0; position < end; ++position) {
    for (int32_t at = begin_[order[position]]; at < begin_[order[position] + 1]; ++at)
      lives[inUse_[at]].add(position);
  }
  std::vector<int64_t> change(end + 1, 0);
  for (size_t storage = 0; storage < bytes_.size(); ++storage) {
    if (lives[storage].isEmpty()) continue;
    change[lives[storage].begin] += bytes_[storage];
    change[toTheEnd_[storage] ? end : lives[storage].end] -= bytes_[storage];
  }
  int64_t live = 0, most = 0;
  for (int64_t delta : change) most = std::max(most, live += delta);
  return most;
}

}  // namespace gravure
