#pragma once

#include "ir/core/same_device.h"

namespace gravure {

/// Where tensors of a program's compute device live at run time.
struct DeviceMap {
  c10::Device from{c10::kCPU};  // as program text says
  c10::Device to{c10::kCPU};    // Device::tensorDevice()

  c10::Device operator()(c10::Device device) const {
    return sameDevice(device, from) ? to : device;
  }
  /// True if `device`, as the text says it, is the one that computes and is captured.
  bool computes(c10::Device device) const {
    return (*this)(device) == to && device.type() == from.type();
  }
};

}  // namespace gravure
