#pragma once
// What programs of one graph learn from each other's warm-ups.
//
// Calls in flight have a runtime each, of one program: all of them allocate alike, so a run that one has
// recorded counts for all, and a further one needs no warm-up of its own. Programs of other sizes allocate
// other bytes, but their unsteady calls are the same, and so are the results that callers drop in time.

#include "ir/core/remark.h"
#include "runtime/device/arena_session.h"
#include "runtime/layout/arena_layout.h"
#include "runtime/program/instruction.h"
#include "runtime/step/flat_program.h"

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
  std::vector<int64_t> unsteady;  // positions of calls that allocated otherwise from run to run
  std::thread::id thread;         // of the last run
  int64_t runs = 0;
  bool complete = false;  // no more are wanted
};

/// How an arena was laid out, and of what. Where the latter is the same, so is the former.
struct SharedLayout {
  std::shared_ptr<const FlatProgram> flat;
  /// By entry; nullptr for one that has not run.
  std::vector<std::shared_ptr<const EntryRecording>> recordings;
  std::vector<CallPlanning> planning;
  std::vector<Exclusive> reserved;

  ArenaLayout layout;
  std::vector<int32_t> rows;  // RecordedTensor::row of all calls, in order
  Remarks remarks;

  bool isMadeAlike(const SharedLayout& other) const {
    return flat == other.flat && recordings == other.recordings && planning == other.planning &&
           reserved == other.reserved;
  }
};

/// One for all programs of one text. Steps of each of them may come on any thread.
class SharedWarmUp {
 public:
  /// `operators`: FlatProgram::operators.
  SharedWarmUp(size_t entries, std::shared_ptr<const std::string> operators)
      : operators_(std::move(operators)), entries_(entries), dropped_(entries) {}

  /// Whether they are calls of the same operators in the same order, so that positions in one's Timeline are those in the other's.
  bool isLike(const SharedWarmUp& other) const {
    return operators_ == other.operators_ || *operators_ == *other.operators_;
  }

  void post(size_t entry, std::shared_ptr<const EntryRecording> recording) {
    const std::lock_guard lock(mutex_);
    entries_[entry] = std::move(recording);
    version_.fetch_add(1, std::memory_order_release);
  }
  /// One program more is for calls in flight beside those of the others.
  void join() { several_.store(true, std::memory_order_relaxed); }
  bool isForSeveral() const { return several_.load(std::memory_order_relaxed); }

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

  /// One made alike, which some program still has; nullptr if there is none.
  std::shared_ptr<const SharedLayout> layoutOf(const SharedLayout& wanted) const {
    const std::lock_guard lock(mutex_);
    for (const auto& each : layouts_) {
      auto found = each.lock();
      if (found && found->isMadeAlike(wanted)) return found;
    }
    return nullptr;
  }
  void noteLayout(const std::shared_ptr<const SharedLayout>& laid) {
    const std::lock_guard lock(mutex_);
    std::erase_if(layouts_, [](const auto& each) { return each.expired(); });
    layouts_.push_back(laid);
  }

 private:
  const std::shared_ptr<const std::string> operators_;
  mutable std::mutex mutex_;
  std::vector<std::shared_ptr<const EntryRecording>> entries_;
  std::vector<std::vector<bool>> dropped_;
  std::vector<std::weak_ptr<const SharedLayout>> layouts_;  // as many as programs have, at most
  std::atomic<int64_t> version_ = 0;
  std::atomic<bool> several_ = false;
};

}  // namespace gravure
