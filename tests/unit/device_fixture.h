#pragma once
// The host device, of which a test's own device replaces a part.
#include "runtime/device/forwarding_device.h"

namespace gravure {

class DeviceOnHost : public ForwardingDevice {
 public:
  DeviceOnHost() : ForwardingDevice(makeHostDevice()) {}
};

}  // namespace gravure
