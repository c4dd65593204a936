// What stands for the CUDA device where torch was built without CUDA.
#ifndef GRAVURE_HAS_CUDA

#include "runtime/device/device.h"

#include <c10/util/Exception.h>

namespace gravure {

std::unique_ptr<Device> makeCudaDevice(c10::DeviceIndex) {
  TORCH_CHECK(false, "this build has no CUDA device: PyTorch was built without CUDA, or its CUDA "
                     "headers were not found; use the device host");
}

int64_t releaseCudaMemory() { return 0; }
void giveBackIdleCudaCache() noexcept {}

bool takeDropoutRestart(c10::DeviceIndex) { return false; }

}  // namespace gravure

#endif
