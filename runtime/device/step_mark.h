#pragma once
// Names what a step does for whoever watches: torch.profiler, and Nsight by emit_nvtx.

#include <ATen/record_function.h>

#include <optional>
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

}  // namespace gravure
