#include "runtime/device/captured_work.h"

#include "runtime/device/device.h"

namespace gravure {

const CapturedWork& Executable::work() const {
  static const CapturedWork none;
  return none;
}

void Executable::write(size_t, const uint8_t*) {
  TORCH_INTERNAL_ASSERT(false, "captured work of this device cannot be written");
}

CapturedWork Capture::endTrial() {
  TORCH_INTERNAL_ASSERT(false, "captures of this device cannot be watched");
}

}  // namespace gravure
