#pragma once
// From a node's ArgList and its operator's schema to a Call.

#include "runtime/device/device_map.h"
#include "runtime/program/instruction.h"

namespace gravure {

/// Compiles an operator call: schema defaults filled in, numbers converted to what a boxed call takes,
/// lists typed by the schema, devices mapped. `slotOf(value)` gives the slot of an input or output.
/// TORCH_CHECK naming the node where its arguments don't fit.
Call compileCall(const Node* node, const DeviceMap& devices,
                 const std::function<Slot(const Value*)>& slotOf);

}  // namespace gravure
