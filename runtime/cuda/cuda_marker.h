#pragma once
// A point in a stream's work, which another thread may ask for (runtime/device/device.h).

#include "runtime/cuda/cuda_event.h"
#include "runtime/device/device.h"

namespace gravure {

class CudaMarker final : public Marker {
 public:
  explicit CudaMarker(c10::DeviceIndex device) : device_(device) {}
  void record() override;
  bool reached() override;

 private:
  const c10::DeviceIndex device_;
  CudaEvent event_;
};

}  // namespace gravure
