#pragma once
// Who holds what the runtime lent.

#include <atomic>
#include <cstdint>

namespace gravure {

/// Who still holds memory that was lent. Loans return from any thread, at the storage's last drop.
class LoanBook {
 public:
  int64_t outstanding() const { return outstanding_.load(std::memory_order_acquire); }

 private:
  friend class Lender;
  std::atomic<int64_t> outstanding_{0};
};

}  // namespace gravure
