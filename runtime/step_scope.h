#pragma once
// Whether a thread works for a step that is running.

#include <c10/util/ThreadLocalDebugInfo.h>

namespace gravure {

/// A step, on its thread. What an operator starts there is inside of it, too: a program that it calls,
/// and a backward, which autograd runs on threads of its own. The mark travels as PyTorch's thread-local
/// debug information, which autograd hands to its threads.
class StepScope {
 public:
  StepScope();
  StepScope(const StepScope&) = delete;
  StepScope& operator=(const StepScope&) = delete;

  static bool isInside();

 private:
  c10::DebugInfoGuard guard_;
};

}  // namespace gravure
