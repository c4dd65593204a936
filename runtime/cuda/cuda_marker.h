#pragma once
// A point in a stream's work, which another thread may ask for (runtime/device.h).

#include "runtime/device.h"

#include <c10/cuda/CUDAEvent.h>

namespace gravure {

class CudaMarker final : public Marker {
 public:
  explicit CudaMarker(c10::DeviceIndex device) : device_(device) {}
  void place() override;
  bool reached() override;

 private:
  const c10::DeviceIndex device_;
  c10::cuda::CUDAEvent event_;
};

}  // namespace gravure
