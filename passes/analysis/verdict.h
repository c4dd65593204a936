#pragma once
// The verdict on one node: why it must run on the host.

#include "ir/core/program.h"
#include "ir/facts/op_facts.h"

#include <optional>
#include <string>
#include <vector>

namespace gravure {

struct Verdict {
  HostReason reason;
  std::string message;  // what is read, copied or unknown
};

/// What is known of the values of one entry, by Value::unique().
struct ValueFacts {
  std::vector<bool> staticShape;    // tensors whose sizes and strides are all known
  std::vector<bool> runtimeNumber;  // numbers, and sizes of tensors, that come from device data
  std::vector<bool> hostConstant;   // CPU tensors without dimensions, with one number in every step
  bool writeNumbers = false;        // PassOptions::writeNumbers

  void set(std::vector<bool>& bits, const Value* value) {
    if (value->unique() >= bits.size()) bits.resize(value->unique() + 1);
    bits[value->unique()] = true;
  }
  static bool has(const std::vector<bool>& bits, const Value* value) {
    return value->unique() < bits.size() && bits[value->unique()];
  }
};

/// nullopt if `node` may be captured on `device`. Does not look at the user's requests.
std::optional<Verdict> verdictOf(const Node* node, c10::Device device, const ValueFacts& values);

/// True if the node may copy between devices: _to_copy, to, copy, copy_, device_put and their like.
bool isDeviceCopy(const Node* node);

}  // namespace gravure
