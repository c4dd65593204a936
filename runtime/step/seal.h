#pragma once
// An entry all of whose partitions are captured, as one value.
//
// A step of such an entry needs two questions answered: is all as it was captured, and is the arena free
// for it. A seal answers the first one in one pass over flat arrays, and says what is launched and how
// results are handed out. It is made once, at the end of the first step that replayed all partitions,
// and never changed: what it rests on breaks it, and the next such step makes another one.

#include "runtime/program/flat_guards.h"
#include "runtime/program/input_memory.h"
#include "runtime/program/instruction.h"
#include "runtime/results/loan_book.h"
#include "runtime/step/moving_inputs.h"
#include "runtime/step/partition.h"

#include <llvm/ADT/ArrayRef.h>
#include <llvm/ADT/STLFunctionalExtras.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace gravure {

/// How one output leaves a step.
struct HandOut {
  enum class How : uint8_t {
    Undecided,  // by where the value lies, which may be another address in each step
    AsIs,       // the value
    Apart,      // the value, as a tensor of its own: a partition hands on the same one each step
    Input,      // the caller's own, of `input`
    Static,     // by copy, where it does not lie there, to the tensor that is handed out each step
    Same,       // that tensor, where the value lies
    Lent,       // from the arena, until the entry runs again
    Saved,      // from the arena, until the entry that reads it has run
    Copied,
    Members,  // of a list: those in the arena are copied
  };
  How how = How::Undecided;
  bool asEager = false;  // CopySource::asEager
  int64_t input = -1;
};

/// One launch of a sealed step. What its work takes anew each step is in CapturedPartition::patches.
struct SealedLaunch {
  std::shared_ptr<CapturedPartition> captured;
  /// Of operands that the seal's own guards do not cover: what host nodes made.
  std::vector<std::pair<Slot, const OperandGuard*>> guards;

  bool holds(const Frame& frame) const {
    for (const auto& [slot, guard] : guards) {
      if (!guard->holds(frame[slot])) return false;
    }
    return captured->numbersHold(frame);
  }
};

class Seal {
 public:
  struct Contents {
    FlatGuards tensors;                                          // by entry input
    std::vector<std::pair<size_t, const OperandGuard*>> others;  // numbers, generators, None
    std::vector<std::pair<size_t, const InputCheck*>> free;      // what no capture reads
    LooseInputs loose;                                           // whose address no guard says
    std::vector<SealedLaunch> launches;                          // by EntryCode::launches
    std::vector<HandOut> results;                                // by output
    std::vector<std::shared_ptr<const LoanBook>> books;  // of results that a replay writes over
    /// Whether saved values that it reads lie in the arena; unknown where no guard says so.
    std::optional<bool> readsLent;
  };
  explicit Seal(Contents contents) : contents_(std::move(contents)) {}

  /// True if all inputs are what was captured. Throws c10::Error for one that the program's types refuse.
  bool holds(const std::vector<c10::IValue>& inputs) const;
  /// The same, but for inputs that no capture reads: free().
  bool capturesHold(const std::vector<c10::IValue>& inputs) const;
  const std::vector<std::pair<size_t, const InputCheck*>>& free() const { return contents_.free; }
  /// LooseInputs::areApart(), which holds() asks, too.
  bool areApart(const std::vector<c10::IValue>& inputs) const {
    return contents_.loose.areApart(inputs);
  }
  /// True if somebody holds a result that the next replay would write over.
  bool resultsHeld() const;

  std::optional<bool> readsLent() const { return contents_.readsLent; }
  const SealedLaunch& launch(size_t index) const { return contents_.launches[index]; }
  size_t launchCount() const { return contents_.launches.size(); }
  const HandOut& result(size_t output) const { return contents_.results[output]; }
  /// Whether it launches what `partitions` have.
  bool launches(const std::vector<Partition>& partitions) const;

  // The memory outside the arena that its captures read (ReadMemory).
  void letGoOfMemory() const;
  /// False where some of it is gone: the seal cannot hold any more, and is of no use.
  bool holdMemory() const;
  /// Whether some of it, which was let go of, is gone.
  bool isMemoryGone() const;

 private:
  const Contents contents_;
};

/// The seals of one entry: one for each set of addresses that it is captured for. At most one is current:
/// its captures are those that the entry's partitions have, and what they read is held. Those beside it
/// keep their captures, and hold nothing: each goes when what it reads does.
class Seals {
 public:
  /// The one that holds; nullptr if none does. Throws as Seal::holds().
  const Seal* find(const std::vector<c10::IValue>& inputs) const;
  /// The same of those that are not current, by Seal::capturesHold() alone.
  const Seal* findBeside(const std::vector<c10::IValue>& inputs) const;
  const Seal* current() const { return current_; }
  size_t count() const { return seals_.size(); }
  /// Of each seal, by launch.
  void
  forEachCapture(llvm::function_ref<void(size_t launch, const CapturedPartition*)> visit) const {
    for (const auto& seal : seals_) {
      for (size_t i = 0; i < seal->launchCount(); ++i) visit(i, seal->launch(i).captured.get());
    }
  }
  /// Another number once one of them was made or broken.
  uint64_t changes() const { return changes_; }
  /// True if one of them launches what `partitions` have.
  bool cover(const std::vector<Partition>& partitions) const;
  /// Becomes the current one.
  void add(Seal::Contents contents);
  /// Something that they rest on has changed.
  void breakAll();
  /// The same for the current one alone, if there is one.
  void breakCurrent();
  /// The partitions are to have other captures: there is no current one from now on. Of those beside it,
  /// which were current before, the last `most` stay.
  void setAside(size_t most);
  /// `seal`, which holds, becomes the current one. False where memory that it reads has gone: it is dropped.
  bool makeCurrent(const Seal& seal);
  /// Drops those whose memory is gone.
  void dropGone();

 private:
  void drop(const Seal* seal);

  std::vector<std::unique_ptr<const Seal>> seals_;  // the one that was current last is the first
  const Seal* current_ = nullptr;
  uint64_t changes_ = 0;
};

/// What a seal has for the inputs and launches of an entry, all of whose partitions are captured; results
/// and books are left to be filled in. `staged`: ServedEntry::staged.
Seal::Contents sealLaunches(const EntryCode& code, llvm::ArrayRef<InputCheck> checks,
                            const MovingInputs& moving, const std::vector<Partition>& partitions,
                            const std::vector<std::vector<at::Tensor>>& staged);

}  // namespace gravure
