#pragma once
// The cudagraph:: nodes that read device state on the host.

#include "runtime/device/device_map.h"
#include "runtime/program/instruction.h"

namespace gravure {

/// cudagraph::read_host: all elements of a tensor, one copy and one wait. Integer elements become
/// ints, bools bools, floating-point ones floats; TORCH_CHECK if there are more or fewer than outputs.
std::function<void(torch::jit::Stack&)> readHostOperation(const Node* node);

/// cudagraph::save_rng_state("cpu"): the state of that device's default generator.
std::function<void(torch::jit::Stack&)> saveRngStateOperation(const Node* node,
                                                              const DeviceMap& devices);

}  // namespace gravure
