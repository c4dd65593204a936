#pragma once
// From an emitted entry to instructions.

#include "ir/memory/timeline.h"
#include "runtime/device/device_map.h"
#include "runtime/program/instruction.h"

namespace gravure {

/// Flattens one entry. Launch blocks are inlined: a block parameter shares the slot of its operand, a
/// launch's output that of the inner value. Slots are released after their last use in program order.
/// `entry` and `timeline` must outlive the result. TORCH_CHECK naming the node where the entry is not
/// what emit-runtime-calls leaves. Linear in nodes plus edges.
EntryCode flatten(const Entry& entry, const Timeline& timeline, const DeviceMap& devices);

}  // namespace gravure
