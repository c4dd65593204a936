#include "runtime/device/call_faults.h"

#include <c10/util/Exception.h>

#include <atomic>

namespace gravure {
namespace {

std::atomic<bool> counting{false};
std::atomic<int64_t> passes{0}, due{0};
std::atomic<const char*> hit{nullptr};

}  // namespace

void CallFaults::start(int64_t pass) {
  passes = 0;
  due = pass;
  hit = nullptr;
  counting = true;
}

int64_t CallFaults::stop() {
  counting = false;
  return passes;
}

std::string CallFaults::failed() {
  const char* const what = hit;
  return what != nullptr ? what : "";
}

bool callSucceeds(const char* what) noexcept {
  if (!counting.load(std::memory_order_relaxed)) return true;
  if (passes.fetch_add(1) + 1 != due) return true;
  hit = what;
  return false;
}

void passCall(const char* what) { TORCH_CHECK(callSucceeds(what), "injected fault at ", what); }

}  // namespace gravure
