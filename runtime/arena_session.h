#pragma once
// Which memory answers the tensor allocations of one thread while it runs a step.
//
// A device's allocator (installed once, forwarding to PyTorch's own) asks the session of its thread,
// if there is one:
//   record   PyTorch's allocator serves; size, step and end of each allocation are noted
//   serve    the plan answers, by step and ordinal; the first allocation of a step that does not
//            match sends the rest of that step to PyTorch's allocator
// Steps are the calls of the flattened program (Timeline::steps()).

#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

namespace gravure {

class Slab;

/// One allocation as the recorded run made it.
struct RecordedAllocation {
  int64_t bytes = 0;
  int64_t freedAtStep = -1;  // step in which it was given back; -1 if alive at the end of the run
  void* address = nullptr;   // in the recorded run; to find the output that owns it
  bool operator==(const RecordedAllocation&) const;  // bytes and freedAtStep
};

/// Allocations of one run: [step][ordinal].
using AllocationRecord = std::vector<std::vector<RecordedAllocation>>;

/// Where the plan puts one allocation: offset in the slab, or -1 to leave it to PyTorch's allocator.
struct PlannedAllocation {
  int64_t bytes = 0;
  int64_t offset = -1;
};
using ServePlan = std::vector<std::vector<PlannedAllocation>>;

class ArenaSession {
 public:
  /// Opens a recording (or serving) session on this thread; closed by the destructor. Sessions nest;
  /// the innermost one answers.
  explicit ArenaSession(size_t steps);
  ArenaSession(const ServePlan& plan, std::shared_ptr<Slab> slab);
  ~ArenaSession();
  ArenaSession(const ArenaSession&) = delete;
  ArenaSession& operator=(const ArenaSession&) = delete;

  /// The session of the calling thread, nullptr if there is none.
  static ArenaSession* current();

  /// Allocations from here on belong to `step`; -1: to none, PyTorch's allocator serves.
  void enterStep(int64_t step);

  // For allocators, on the session's thread.
  bool recording() const { return plan_ == nullptr; }
  /// Serve: the planned address for an allocation of `bytes`, nullptr to use PyTorch's allocator.
  void* serve(size_t bytes);
  void noteAllocation(void* address, size_t bytes);
  void noteFree(void* address);

  AllocationRecord takeRecord() { return std::move(record_); }
  /// Steps at which an allocation did not match the plan, in order, each once.
  const std::vector<int64_t>& mismatches() const { return mismatches_; }

 private:
  ArenaSession* outer_ = nullptr;
  const ServePlan* plan_ = nullptr;
  std::shared_ptr<Slab> slab_;
  AllocationRecord record_;
  std::unordered_map<void*, std::pair<int64_t, size_t>> live_;  // address -> step, ordinal
  int64_t step_ = -1;
  size_t cursor_ = 0;
  bool diverged_ = false;
  std::vector<int64_t> mismatches_;
};

}  // namespace gravure
