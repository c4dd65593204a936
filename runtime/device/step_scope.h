#pragma once
// Whether a thread works for a step that is running.

#include <c10/util/ThreadLocalDebugInfo.h>

#include <atomic>

namespace gravure {

/// A step, on its thread. What an operator starts there is inside of it, too: a program that it calls,
/// and a backward, which autograd runs on threads of its own. The mark travels as PyTorch's thread-local
/// debug information, which autograd hands to its threads.
class StepScope {
 public:
  StepScope();
  ~StepScope() { running_.fetch_sub(1, std::memory_order_relaxed); }
  StepScope(const StepScope&) = delete;
  StepScope& operator=(const StepScope&) = delete;

  /// Asked several times a step, mostly where none runs: nothing is looked up then.
  static bool isInside() { return running_.load(std::memory_order_relaxed) != 0 && isMarked(); }

 private:
  static bool isMarked();

  static std::atomic<int> running_;  // steps, on all threads
  c10::DebugInfoGuard guard_;
};

}  // namespace gravure
