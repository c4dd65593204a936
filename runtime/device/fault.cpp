#include "runtime/device/call_faults.h"
#include "runtime/device/device.h"

#include <c10/util/Exception.h>
#include <c10/util/env.h>

#include <algorithm>

namespace gravure {
namespace {

const char* faultName(FaultPoint point) {
  switch (point) {
    case FaultPoint::CaptureBegin: return "the begin of a capture";
    case FaultPoint::CaptureCall: return "a call in a capture";
    case FaultPoint::CaptureEnd: return "the end of a capture";
    case FaultPoint::Launch: return "a launch";
    case FaultPoint::Allocation: return "an allocation from the arena";
    case FaultPoint::Completion: return "the end of a replay";
  }
  return "";
}

}  // namespace

void failForMemory(const std::string& what, int64_t missing) {
  constexpr int64_t kMiB = int64_t{1} << 20;
  TORCH_CHECK_WITH(OutOfMemoryError, false, what, ", and ",
                   std::max<int64_t>(1, (missing + kMiB - 1) / kMiB), " MiB of them are missing");
  std::abort();
}

void refuseCapture(const std::string& message) {
  throw NotCapturable({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, message);
}

bool withoutVirtualMemory() {
  return c10::utils::check_env("GRAVURE_NO_VIRTUAL_MEMORY").value_or(false);
}

void Device::injectFault(FaultPoint point, int64_t countdown, int64_t missing) {
  countdown_[static_cast<size_t>(point)] = countdown;
  missing_[static_cast<size_t>(point)] = missing;
}

void Device::passFaultPoint(FaultPoint point) {
  passCall(faultName(point));
  int64_t& left = countdown_[static_cast<size_t>(point)];
  if (left == 0 || --left > 0) return;
  if (const int64_t missing = missing_[static_cast<size_t>(point)]; missing > 0)
    failForMemory(std::string("injected out of memory at ") + faultName(point), missing);
  TORCH_CHECK(false, "injected fault at ", faultName(point));
}

}  // namespace gravure
