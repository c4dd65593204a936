#pragma once
// From recorded runs and the program's lifetimes to an offset in the arena for each allocation.

#include "ir/core/remark.h"
#include "ir/memory/memory_plan.h"
#include "ir/memory/timeline.h"
#include "runtime/device/arena_session.h"
#include "runtime/device/device.h"
#include "runtime/device/device_map.h"
#include "runtime/program/instruction.h"

#include <functional>

namespace gravure {

struct ArenaLayout {
  MemoryPlan plan;
  ServePlan serve;                            // by position in the Timeline
  OperandPlan operands;                       // likewise
  std::vector<std::vector<DeadBlock>> dying;  // by position of the call they die with
  // What may be held between steps.
  std::vector<Extent> saved;                 // alive from one entry to the next
  std::vector<std::vector<Extent>> results;  // reserved, by entry that may return them
  std::vector<std::vector<Extent>> used;     // by entry: what its runs read and write
  /// [entry][stage][operand]: offset of a staged copy, -1 where its shape is known only at run time.
  std::vector<std::vector<std::vector<int64_t>>> staged;
};

/// For how long a storage that is handed to the caller as it is shares its bytes with no other.
enum class Exclusive : uint8_t {
  None,
  /// From its birth to the end of its entry: nobody holds it any more when a later one runs.
  InEntry,
  /// From its birth to the end of the program: nobody holds it any more when the next step begins.
  FromBirth,
  /// Until its entry runs again: the entries before that one run while it is held.
  Always,
};

struct LayoutOptions {
  int64_t alignment = 64;
  std::vector<Exclusive> reserved;  // by Timeline storage
  /// Sees every buffer before placement; tests plant lifetime faults with it.
  std::function<void(std::vector<Buffer>&)> edit;
};

/// What of a call's allocations can be planned.
enum class CallPlanning : uint8_t {
  None,     // nothing: what it returns has no shape known in advance, or lives on another device
  Results,  // results of known shape, but not what it allocates besides: some size varies
  All,      // everything: each tensor that it takes and returns has a shape known in advance
};
CallPlanning callPlanning(const Node* node, const DeviceMap& devices);

/// Positions of calls that are planned in full, and in which two recorded runs differ in bytes or ends.
std::vector<int64_t> differingCalls(const Timeline& timeline, const AllocationRecord& a,
                                    const AllocationRecord& b,
                                    const std::vector<CallPlanning>& planning);

/// An allocation that its call gives back lives for that call; one that holds an output lives as long as the
/// output's storage does in `timeline`; anything else is the library's own and stays with PyTorch's
/// allocator. Compiled code allocates, gives back, and lets go of its operands one after another, and is
/// planned in that order: an operand that nobody reads after the call ends where it was let go of. Where a
/// recorded output shares memory that the program's facts call separate, lives are joined, with the remark
/// unexpected-alias.
/// `records`: one an entry, empty where that has not run. `planning`: by position. Notes in `codes` where
/// results are planned (RecordedTensor::row).
ArenaLayout layOutArena(const Timeline& timeline, std::vector<EntryCode>& codes,
                        const std::vector<AllocationRecord>& records, const DeviceMap& devices,
                        const std::vector<CallPlanning>& planning, const LayoutOptions& options,
                        Remarks& remarks);

/// Bytes that are alive at once in that arena, at most: MemoryPlan::load, without a place for anything.
int64_t arenaLoad(const Timeline& timeline, std::vector<EntryCode>& codes,
                  const std::vector<AllocationRecord>& records, const DeviceMap& devices,
                  const std::vector<CallPlanning>& planning, const LayoutOptions& options);

}  // namespace gravure
