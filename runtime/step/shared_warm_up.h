#pragma once
// What programs of one graph learn from each other's warm-ups.
//
// Calls in flight have a program each, of one text: what one of them allocates the others do, so a run that
// one recorded is a run of all, and a further one needs no warm-up of its own. Programs of other sizes
// allocate other bytes, but the same calls are unsteady, and the same results are dropped.

#include "runtime/device/arena_session.h"
#include "runtime/program/instruction.h"

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace gravure {

/// What is known of one entry behind its last recorded run.
struct EntryRecording {
  AllocationRecord record;
  std::vector<RecordedCall> calls;                      // in the order of EntryCode::forEachCall
  std::vector<std::vector<int64_t>> remainders;         // Stage::remainders
  std::vector<std::vector<c10::DispatchKeySet>> reads;  // Stage::reads
  std::vector<std::vector<int64_t>> strides;            // EntryInputs::strides
  std::vector<int64_t> unsteady;  // steps that allocated otherwise from run to run
  std::thread::id thread;         // of the last run
  int64_t runs = 0;
  bool settled = false;
};

/// One for all programs of one text. Steps of each of them may come on any thread.
class SharedWarmUp {
 public:
  /// `operators`: operatorsOf() the program.
  SharedWarmUp(size_t entries, std::string operators)
      : operators_(std::move(operators)), entries_(entries), dropped_(entries) {}

  /// Whether they are calls of the same operators in the same order, so that one's steps are the other's.
  bool isLike(const SharedWarmUp& other) const { return operators_ == other.operators_; }

  void post(size_t entry, EntryRecording recording) {
    auto posted = std::make_shared<const EntryRecording>(std::move(recording));
    const std::lock_guard lock(mutex_);
    entries_[entry] = std::move(posted);
    version_.fetch_add(1, std::memory_order_release);
  }
  /// One program more is for calls that are in flight together with those of the others.
  void join() { several_.store(true, std::memory_order_relaxed); }
  bool isOfSeveral() const { return several_.load(std::memory_order_relaxed); }

  /// nullptr before the first one.
  std::shared_ptr<const EntryRecording> of(size_t entry) const {
    const std::lock_guard lock(mutex_);
    return entries_[entry];
  }
  /// Another one once something was posted.
  int64_t version() const { return version_.load(std::memory_order_acquire); }

  /// By output of `entry`: whether it was dropped before the next step began.
  void postDropped(size_t entry, std::vector<bool> dropped) {
    const std::lock_guard lock(mutex_);
    dropped_[entry] = std::move(dropped);
  }
  bool wasDropped(size_t entry, size_t output) const {
    const std::lock_guard lock(mutex_);
    return output < dropped_[entry].size() && dropped_[entry][output];
  }

 private:
  const std::string operators_;
  mutable std::mutex mutex_;
  std::vector<std::shared_ptr<const EntryRecording>> entries_;
  std::vector<std::vector<bool>> dropped_;
  std::atomic<int64_t> version_ = 0;
  std::atomic<bool> several_ = false;
};

/// Which operators the entries call, in order, and where partitions begin.
std::string operatorsOf(std::vector<EntryCode>& codes);

}  // namespace gravure
