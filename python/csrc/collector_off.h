#pragma once
// No garbage collection by Python while something is captured.

#include <memory>

namespace gravure {

/// While one lives, Python collects no cycles on any thread, unless somebody turns that on meanwhile. In a cycle
/// may lie what ends by a call of the driver that breaks a capture: a kernel of Triton's unloads its module.
/// nullptr where the process has no Python.
std::shared_ptr<void> collectorOff();

}  // namespace gravure
