#pragma once
// Which memory answers the tensor allocations of one thread while it runs a step.
//
// A device's allocator (installed once, forwarding to PyTorch's own) asks the session of its thread,
// if there is one:
//   record   PyTorch's allocator serves; size, call and end of each allocation are noted
//   serve    the plan answers, by call and ordinal; PyTorch's allocator serves what does not match the
//            next one in size (attention keeps its seeds on the device in a capture alone), or whose
//            bytes another one of its call, or an operand, still has. A result that came to lie on
//            another one's bytes is found by anyMisplaced()
// Operands that a call lets go of before it ends are watched (runtime/results/watched_operands.h): a
// recording notes when, and while a plan serves, the call's own allocations may lie there from then on.
// Calls are known by their position in the Timeline.

#include <c10/core/Device.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

namespace gravure {

class Slab;
struct Extent;

/// One allocation as the recorded run made it.
struct RecordedAllocation {
  int64_t bytes = 0;
  int64_t freedAt = -1;     // position of the call that gave it back; -1: none did in the run
  void* address = nullptr;  // in the recorded run; to find the output that owns it
  /// How many allocations its own call had made when that gave it back; -1 if another one did.
  int64_t freedBefore = -1;
};

/// Allocations of one run: [position][ordinal].
using AllocationRecord = std::vector<std::vector<RecordedAllocation>>;

/// Where the plan puts one allocation: offset in the slab, or -1 to leave it to PyTorch's allocator.
struct PlannedAllocation {
  int64_t bytes = 0;
  int64_t offset = -1;
  /// The call's other allocations vary from run to run: pass over those of other sizes.
  bool loose = false;
  /// It may lie where another one of its call lay, which the recorded run had given back by then.
  bool shared = false;
};
using ServePlan = std::vector<std::vector<PlannedAllocation>>;
/// By position: where operands lie that the call let go of in the recorded run, and others may lie then.
using OperandPlan = std::vector<std::vector<Extent>>;

class ArenaSession {
 public:
  /// Opens a recording (or serving) session on this thread; closed by the destructor. It is for
  /// allocations on `device` alone: a program of cuda:0 allocates on the CPU, too, and perhaps on cuda:1.
  /// Sessions nest; the innermost one of a device answers.
  explicit ArenaSession(size_t calls, c10::Device device = c10::kCPU);
  ArenaSession(const ServePlan& plan, std::shared_ptr<Slab> slab, c10::Device device = c10::kCPU,
               const OperandPlan* operands = nullptr);
  ~ArenaSession();
  ArenaSession(const ArenaSession&) = delete;
  ArenaSession& operator=(const ArenaSession&) = delete;

  /// The innermost session of the calling thread, nullptr if there is none.
  static ArenaSession* current();
  /// The same for allocations on `device`.
  static ArenaSession* of(c10::Device device);
  /// The calling thread gives `address` back: tells the session that recorded it, if there is one.
  static void freed(void* address);
  /// Nobody holds the operand at `address` any more, which was watched under the number `watch`. Ignored
  /// on another thread, and behind the step.
  static void letGo(uint64_t watch, const void* address);

  /// Allocations from here on belong to the call at `position`; -1: as behind leaveCall().
  void enterCall(int64_t position);
  /// Allocations from here on belong to no call: PyTorch's allocator serves.
  void leaveCall() { enterCall(-1); }

  // For allocators, on the session's thread.
  bool recording() const { return plan_ == nullptr; }
  /// Serve: the planned address for an allocation of `bytes`, nullptr to use PyTorch's allocator.
  void* serve(size_t bytes);
  void noteAllocation(void* address, size_t bytes);
  /// True if this session recorded the allocation, or served it in this call from shared bytes.
  bool noteFree(void* address);

  AllocationRecord takeRecord() { return std::move(record_); }
  /// The number under which this call's operands are watched from here on; 0 where nobody asks when they
  /// are let go of.
  uint64_t watch();
  /// Record: how many allocations the current call had made when it let go of the operand at `address`;
  /// -1 if it has not.
  int64_t letGoBefore(const void* address) const;
  /// Record: ordinal of the current call's allocation that is alive at `address`; -1 if there is none.
  int32_t ordinalOf(const void* address) const;
  /// Serve: the memory that planned offsets lie in; nullptr while recording.
  const std::shared_ptr<Slab>& slab() const { return slab_; }
  const ServePlan* plan() const { return plan_; }
  /// Positions of calls of which an allocation did not match the plan, in order, each once.
  const std::vector<int64_t>& mismatches() const { return mismatches_; }

 private:
  /// Shared bytes that were served in the current call, or an operand's, and were not given back yet.
  struct Served {
    int64_t offset;
    int64_t bytes;
  };
  bool isFree(const PlannedAllocation& planned) const;

  ArenaSession* outer_ = nullptr;
  const c10::Device device_;
  const ServePlan* plan_ = nullptr;
  const OperandPlan* operands_ = nullptr;
  std::shared_ptr<Slab> slab_;
  AllocationRecord record_;
  /// Position and ordinal, by address.
  std::unordered_map<const void*, std::pair<int64_t, size_t>> live_;
  int64_t position_ = -1;  // of the current call
  size_t cursor_ = 0;
  std::vector<Served> served_;
  std::vector<int64_t> mismatches_;
  uint64_t watch_ = 0;
  std::unordered_map<const void*, int64_t> letGo_;  // of the current call
};

}  // namespace gravure
