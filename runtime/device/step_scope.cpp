#include "runtime/device/step_scope.h"

#include "ir/torch_private/debug_info_kind.h"

namespace gravure {
namespace {

constexpr auto kStep = torch_private::stepKind();

using c10::DebugInfoGuard;
using c10::ThreadLocalDebugInfo;

/// The calling thread's information with the mark. Where it has none, as most do, all threads share one.
std::shared_ptr<ThreadLocalDebugInfo> marked() {
  // Never destroyed: threads run steps until the process ends.
  static const auto& mark = *new std::shared_ptr<c10::DebugInfoBase>(new c10::DebugInfoBase);
  const auto make = [] {
    const DebugInfoGuard guard(kStep, mark);
    return ThreadLocalDebugInfo::current();
  };
  const std::shared_ptr<ThreadLocalDebugInfo> now = ThreadLocalDebugInfo::current();
  if (now) return make();
  static const auto& alone = *new std::shared_ptr<ThreadLocalDebugInfo>(make());
  return alone;
}

}  // namespace

std::atomic<int> StepScope::running_ = 0;

StepScope::StepScope() : guard_(marked()) { running_.fetch_add(1, std::memory_order_relaxed); }

bool StepScope::isMarked() { return ThreadLocalDebugInfo::get(kStep) != nullptr; }

}  // namespace gravure
