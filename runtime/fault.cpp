#include "runtime/device.h"

#include <c10/util/Exception.h>

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

void Device::injectFault(FaultPoint point, int64_t countdown) {
  countdown_[static_cast<size_t>(point)] = countdown;
}

void Device::passFaultPoint(FaultPoint point) {
  int64_t& left = countdown_[static_cast<size_t>(point)];
  if (left == 0 || --left > 0) return;
  TORCH_CHECK(false, "injected fault at ", faultName(point));
}

}  // namespace gravure
