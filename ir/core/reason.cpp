#include "ir/core/reason.h"

#include <c10/util/Exception.h>

#include <array>

namespace gravure {
namespace {

struct Row {
  HostReason reason;
  const char* name;
  const char* cure;
};

constexpr std::array<Row, 17> kRows{{
    {HostReason::HostSync, "host-sync",
     "keep the value on the device, or read it after the step; several reads of one tensor are "
     "merged"},
    {HostReason::CpuTensor, "cpu-tensor",
     "move the tensor to the program's device before the step"},
    {HostReason::PageableCopy, "pageable-copy",
     "copy before the step, or create the tensor on the device"},
    {HostReason::DynamicShape, "dynamic-shape",
     "pad to a fixed size, or take the size from outside of the step: torch.compile has a program "
     "for each (max_shapes), an exported program the size that it was exported with"},
    {HostReason::DataDependentShape, "data-dependent-shape",
     "use a form whose size does not depend on data: a mask and torch.where instead of indexing"},
    {HostReason::HostNumber, "host-number",
     "keep the number on the device, as a tensor without dimensions"},
    {HostReason::OpaqueCallable, "opaque-callable",
     "register it through torch.library with an allocation-free, sync-free CUDA kernel"},
    {HostReason::UncapturableRng, "uncapturable-rng",
     "draw from the device's default generator; on the CPU saved states cannot be replayed"},
    {HostReason::OpenCollective, "open-collective",
     "keep the collective, its wait and what touches its buffers free of host nodes"},
    {HostReason::BlockingCollective, "blocking-collective",
     "use fixed split sizes, or an asynchronous collective"},
    {HostReason::UnsafeTag, "unsafe-tag",
     "remove the tag cudagraph_unsafe if the operator is safe under capture"},
    {HostReason::UnsafeOperator, "unsafe-operator",
     "replace the operator; docs/remarks.md says why"},
    {HostReason::UnsupportedDevice, "unsupported-device", "run this part on the program's device"},
    {HostReason::ControlFlow, "control-flow",
     "compute both branches and select with torch.where, or take the decision before the step"},
    {HostReason::TooSmall, "too-small", "lower min_partition_size if the launch is worth it"},
    {HostReason::UserRequest, "user-request", "take it off the list of the option host"},
    {HostReason::CaptureFailed, "capture-failed",
     "the message says what failed; name the operator in the option host to cut it out"},
}};

}  // namespace

const char* reasonName(HostReason reason) {
  for (const Row& row : kRows) {
    if (row.reason == reason) return row.name;
  }
  TORCH_INTERNAL_ASSERT(false, "host reason ", int(reason), " has no row");
}

const char* reasonCure(HostReason reason) {
  for (const Row& row : kRows) {
    if (row.reason == reason) return row.cure;
  }
  TORCH_INTERNAL_ASSERT(false, "host reason ", int(reason), " has no row");
}

std::optional<HostReason> reasonFromName(std::string_view name) {
  for (const Row& row : kRows) {
    if (name == row.name) return row.reason;
  }
  return std::nullopt;
}

}  // namespace gravure
