#pragma once
// Which generator a node draws from.

#include "ir/core/program.h"

#include <c10/core/Device.h>

#include <optional>

namespace gravure {

/// The device under its one name: "cuda" is "cuda:0", as everywhere in a program, "cpu:0" is "cpu".
c10::Device generatorDevice(c10::Device device);

/// One generator: a Generator value, or the default generator of a device.
struct RandomSource {
  const Value* state = nullptr;
  c10::Device device = c10::Device(c10::kCPU);
  bool operator==(const RandomSource&) const = default;
};
/// The generator whose state `node` advances or saves; nullopt if there is none. A draw from a saved
/// state (`rng(%tensor)`) puts the generator back and advances none.
std::optional<RandomSource> randomSource(const Entry& entry, const Node* node);

}  // namespace gravure
