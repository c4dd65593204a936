#pragma once
// From recorded runs and the program's lifetimes to a place in the arena for each allocation.

#include "ir/memory_plan.h"
#include "ir/remark.h"
#include "ir/timeline.h"
#include "runtime/arena_session.h"
#include "runtime/device_map.h"
#include "runtime/instruction.h"

#include <functional>

namespace gravure {

struct ArenaLayout {
  MemoryPlan plan;
  ServePlan serve;                             // one row a Timeline step
  std::vector<std::vector<DeadBlock>> dying;   // by the step they die with
  /// [entry][stage][operand]: offset of a staged copy, -1 where its shape is known only at run time.
  std::vector<std::vector<std::vector<int64_t>>> staged;
};

struct LayoutOptions {
  int64_t alignment = 64;
  /// Sees every buffer before placement; tests plant lifetime faults with it.
  std::function<void(std::vector<Buffer>&)> edit;
};

/// True if the allocations of this call may be planned: each tensor it takes and returns has a shape
/// known in advance, and what it returns lives on the device that computes.
bool isPlannable(const Node* node, const DeviceMap& devices);

/// Steps at which two recorded runs differ in bytes or ends, of those in `plannable`.
std::vector<int64_t> differingSteps(const AllocationRecord& a, const AllocationRecord& b,
                                    const std::vector<bool>& plannable);

/// Plans: an allocation given back within its call lives for that step; one that holds an output lives
/// as long as the output's storage does in `timeline`; anything else is the library's own and stays
/// with PyTorch's allocator. `records` holds one record an entry, `unstable` the steps to leave alone.
/// Where a recorded output shares memory that the program's facts call separate, lives are joined,
/// with the remark unexpected-alias.
ArenaLayout layOutArena(const Timeline& timeline, std::vector<EntryCode>& codes,
                        const std::vector<AllocationRecord>& records, const DeviceMap& devices,
                        const std::vector<bool>& plannable, const LayoutOptions& options,
                        Remarks& remarks);

}  // namespace gravure
