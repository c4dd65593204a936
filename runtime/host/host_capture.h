#pragma once
// Capture as the host device emulates it: nothing is computed, calls are noted with their operands'
// addresses, and what CUDA would refuse fails.

#include "runtime/device/device.h"
#include "runtime/program/instruction.h"

#include <optional>
#include <string>

namespace gravure {

/// Why CUDA would refuse `call` in a capture, by a table of its own, which knows nothing of
/// classify-capturability: reads of device data on the host, sizes that depend on data, settings of a
/// generator. nullopt if it may be captured.
std::optional<std::string> refusedInCapture(const Call& call, const torch::jit::Stack& operands,
                                            const c10::IValue& rng);

std::unique_ptr<Capture> beginHostCapture(Device& device);

}  // namespace gravure
