#pragma once
// The memory outside the arena that captures read.

#include <c10/core/Storage.h>

#include <llvm/ADT/STLExtras.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace gravure {

/// Held, so that nothing else can come to lie there (law 4); or known alone, while other captures are in
/// force: then it may go, and shows that it has.
class ReadMemory {
 public:
  void add(const c10::Storage& storage) {
    const auto isSame = [&](const c10::Storage& each) { return each.is_alias_of(storage); };
    if (storage && llvm::none_of(held_, isSame)) held_.push_back(storage);
  }
  void letGo() {
    for (const c10::Storage& each : held_) known_.push_back(each.getWeakStorageImpl());
    held_.clear();
  }
  /// False, and nothing is held, where some of it is gone.
  bool holdAgain() {
    std::vector<c10::Storage> held;
    for (const auto& each : known_) {
      auto alive = each.lock();
      if (!alive) return false;
      held.emplace_back(std::move(alive));
    }
    known_.clear();
    for (c10::Storage& each : held) held_.push_back(std::move(each));
    return true;
  }
  bool isGone() const {
    return std::any_of(known_.begin(), known_.end(),
                       [](const auto& each) { return each.expired(); });
  }

 private:
  std::vector<c10::Storage> held_;
  std::vector<c10::weak_intrusive_ptr<c10::StorageImpl>> known_;
};

}  // namespace gravure
