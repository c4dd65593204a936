#pragma once
// Who holds what the runtime lent.

#include <c10/core/Stream.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

namespace gravure {

/// Who still holds memory that was lent. Loans return from any thread, at the storage's last drop.
class LoanBook {
 public:
  int64_t outstanding() const { return outstanding_.load(std::memory_order_acquire); }

  /// `stream` reads what is lent: what writes there next has to come after it.
  void readOn(c10::Stream stream) {
    const std::lock_guard lock(mutex_);
    readers_.push_back(stream);
    anyReaders_.store(true, std::memory_order_release);
  }
  /// Those streams, which the caller waits for.
  std::vector<c10::Stream> takeReaders() {
    if (!anyReaders_.load(std::memory_order_acquire)) return {};  // asked for in each step
    const std::lock_guard lock(mutex_);
    anyReaders_.store(false, std::memory_order_relaxed);
    return std::exchange(readers_, {});
  }

 private:
  friend class Lender;
  friend struct Loan;
  std::atomic<int64_t> outstanding_{0};
  std::mutex mutex_;
  std::vector<c10::Stream> readers_;
  std::atomic<bool> anyReaders_{false};
};

}  // namespace gravure
