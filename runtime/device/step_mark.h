#pragma once
// Names what a step does for whoever watches: torch.profiler, and Nsight by emit_nvtx. In a
// timed run also which call of the program is made.

#include <ATen/record_function.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

namespace gravure {

/// While alive, the thread does what `name` says, a function that is asked only where somebody watches.
class StepMark {
 public:
  template <typename Name>
  explicit StepMark(Name&& name) {
    auto watchers = at::getStepCallbacksUnlessEmpty(at::RecordScope::USER_SCOPE);
    if (!watchers) return;
    record_.emplace(std::move(*watchers));
    if (record_->isActive()) record_->before(std::forward<Name>(name)());
  }
  StepMark(const StepMark&) = delete;
  StepMark& operator=(const StepMark&) = delete;

 private:
  std::optional<at::RecordFunction> record_;
};

/// Of marks that say which call of a program is made, in runs that are timed (Runtime::runTimed). No
/// operator of PyTorch's and no user marks anything with it, so whoever watches this scope alone sees
/// nothing else, and other watchers do not see these.
constexpr at::RecordScope kCallScope = at::RecordScope::STATIC_RUNTIME_OP;

/// While alive, the thread makes the call at `position` of the Timeline, which is the mark's name.
class CallMark {
 public:
  explicit CallMark(int64_t position) {
    auto watchers = at::getStepCallbacksUnlessEmpty(kCallScope);
    if (!watchers) return;
    record_.emplace(std::move(*watchers));
    if (record_->isActive()) record_->before(std::to_string(position));
  }
  CallMark(const CallMark&) = delete;
  CallMark& operator=(const CallMark&) = delete;

 private:
  std::optional<at::RecordFunction> record_;
};

}  // namespace gravure
