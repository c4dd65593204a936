#pragma once
// The host device with launches that do nothing, so that a step is what the runtime adds to them.

#include "runtime/device/device.h"

#include <memory>

namespace gravure::tool {

/// Captures as the host device does. A replay computes nothing: results hold what lay there before.
std::unique_ptr<Device> makeEmptyLaunches();

}  // namespace gravure::tool
