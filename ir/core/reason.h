#pragma once
// Why a node must run outside a graph: one closed list, with stable kebab-case names.

#include <cstdint>
#include <optional>
#include <string_view>

namespace gravure {

enum class HostReason : uint8_t {
  HostSync,            // reads device data on the host
  CpuTensor,           // reads or writes a tensor of another device than the program's
  PageableCopy,        // copies between the host's pageable memory and the device
  DynamicShape,        // a size of an operand or result is known only at run time
  DataDependentShape,  // the operator itself decides a size from data
  HostNumber,          // takes a number that was read from device data in the same step
  OpaqueCallable,      // a callable that Gravure cannot see into
  UncapturableRng,     // draws in a way that a graph cannot replay
  OpenCollective,      // a collective whose waits or buffers are not all capturable
  BlockingCollective,  // a collective that waits on the host
  UnsafeTag,           // the operator carries PyTorch's tag cudagraph_unsafe
  UnsafeOperator,      // known to fail or to go wrong under capture (the table of op facts)
  UnsupportedDevice,   // runs on a device that cannot capture
  ControlFlow,         // decides at run time which nodes run
  TooSmall,            // its partition would be below the minimum size
  UserRequest,         // the user's list of operators or module paths names it
  CaptureFailed,       // its partition failed to capture (runtime)
};

/// "host-sync" for HostSync.
const char* reasonName(HostReason reason);
std::optional<HostReason> reasonFromName(std::string_view name);
/// What to do about it, in one sentence; the cure column of docs/remarks.md.
const char* reasonCure(HostReason reason);

}  // namespace gravure
