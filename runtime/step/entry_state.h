#pragma once
// One entry, and what is known of it from step to step.
//
// A step that a seal holds for is decided by `seals`, `served` and `results` alone. `inputs`, `warmUp` and
// `uncapturedRuns` are for the others: why no seal holds, and how the entry gets to one.

#include "runtime/device/kernel_settings.h"
#include "runtime/program/guards.h"
#include "runtime/program/instruction.h"
#include "runtime/results/loan_book.h"
#include "runtime/results/result_watch.h"
#include "runtime/step/executor.h"
#include "runtime/step/moving_inputs.h"
#include "runtime/step/read_memory.h"
#include "runtime/step/seal.h"
#include "runtime/step/straight_step.h"

#include <llvm/ADT/ArrayRef.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

namespace gravure {

/// An input that differs from what was captured, in one step.
struct ChangedInput {
  size_t input = 0;
  const void* address = nullptr;  // where it lay, if nothing else differs
  std::vector<int64_t> strides;   // if they differ, and neither dtype nor sizes
  bool operator==(const ChangedInput&) const = default;
};

/// Where inputs lay in a step that ran uncaptured for that.
struct SeenAddresses {
  std::vector<ChangedInput> changed;
  ReadMemory memory;  // theirs, let go of: it shows when it has gone
};

/// What inputs must be, and how they came so far.
struct EntryInputs {
  llvm::ArrayRef<InputCheck> checks;                    // FlatProgram::checks, one an input
  std::vector<std::pair<size_t, OperandGuard>> guards;  // by input, of all captured partitions
  std::unique_ptr<MovingInputs> moving;
  std::vector<std::vector<int64_t>> strides;  // in the warm-up, by input that is not staged
  int64_t runs = 0;  // runs in which inputs were compared with what was captured
  // Of the last of these runs, where they differed:
  std::vector<ChangedInput> changed;
  std::vector<std::pair<size_t, int64_t>> remainders;  // addressRemainder of staged ones
  std::vector<SeenAddresses> seen;  // addresses that nothing was captured for yet

  /// All inputs of this run are what was captured.
  void noteUnchanged() {
    ++runs;
    changed.clear();
    remainders.clear();
  }
};

struct EntryRecording;  // shared_warm_up.h

/// The recorded runs before memory is planned.
struct EntryWarmUp {
  AllocationRecord record;  // of the last one
  /// What is known behind that run, where programs of the same text know it, too.
  std::shared_ptr<const EntryRecording> recording;
  std::vector<int64_t> unsteady;  // positions of calls in which two runs differed: planned in part
  std::thread::id thread;         // of the last one
  int64_t runs = 0;               // in the device's pool
  bool complete = false;          // two agreed, or no more are wanted
};

/// What was handed out, and who holds it. All by output.
struct EntryResults {
  std::vector<std::shared_ptr<LoanBook>> lent;  // who holds it, where it is Lent
  std::vector<at::Tensor> statics;              // what is handed out, where it is Static
  std::vector<bool> heldTogether;               // holdTogether() was told of it
  std::vector<at::Tensor> together;  // the tensor that goes with the loan, the same each step
  std::vector<ResultWatch> watches;  // what is seen until the arena is laid out
  // What the arena is laid out for: results are dropped before the next step, or before a later entry runs.
  std::vector<bool> dropped, droppedInEntry;
  int64_t heldSteps = 0;  // steps in a row in which a lent result was held
};

struct EntryState {
  EntryCode* code = nullptr;
  std::unique_ptr<Executor> executor;
  std::vector<EntryState*> producers;  // whose saved values this entry reads

  EntryInputs inputs;
  EntryWarmUp warmUp;
  ServedEntry served;
  Seals seals;
  StraightStep straight;
  EntryResults results;
  std::optional<KernelSettings> settings;       // of its captures
  std::optional<KernelSettings> otherSettings;  // of the last run, where they differed
  int64_t dropoutSeedings = -1;                 // of its captures, where it has cuDNN's dropout
  bool planned = false;                         // its memory is in the arena's plan
  int64_t unreadRuns = 0;       // runs in a row whose saved values nobody read; before planning
  bool wasServed = false;       // a step was, from the arena in force
  bool lentSaved = false;       // a served step lent saved values
  bool ranWithGroups = false;   // all its collectives have run, with the groups in force
  uint32_t uncapturedRuns = 0;  // a bit for each of the last runs that could have been captured
};

}  // namespace gravure
