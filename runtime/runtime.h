#pragma once
// Runs an emitted program: warm up, plan, capture, replay; or node by node.

#include "ir/core/program.h"
#include "ir/core/remark.h"
#include "ir/memory/memory_plan.h"
#include "runtime/device/device.h"

#include <ATen/core/ivalue.h>
#include <c10/util/Exception.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace gravure {

/// What becomes of the results of captured steps (law 5). Fixed when the memory is planned.
enum class ResultPolicy : uint8_t {
  Owned,   // the caller's: gradients are lent from the arena until somebody holds one when the next
           // step comes, which then runs uncaptured, and that one is a copy from there on; all else
           // is copied
  Copied,  // the caller's: every result is copied
  Static,  // the arena's own, at the same address each step: the next step writes over it
};

/// When the ranks of a program with captured collectives decide together how a step runs
/// (docs/distributed.md).
enum class AgreeWhen : uint8_t {
  AtCapture,  // until all of them have captured it: later steps cost no word between ranks
  EachStep,   // always: a rank that leaves a replay takes all others along
};

/// A step that has not run: what two of its inputs share is not what its program is for.
class InputsShared final : public c10::Error {
 public:
  explicit InputsShared(const std::string& message) : c10::Error({"", "", 0}, message) {}
};

struct RuntimeOptions {
  /// Recorded runs before capture: until two agree, at most this many, and two at least.
  int64_t maxWarmups = 4;
  /// Capture nothing: every step takes the uncaptured path (the reference).
  bool uncaptured = false;
  ResultPolicy results = ResultPolicy::Owned;
  AgreeWhen agree = AgreeWhen::AtCapture;
  /// A step throws InputsShared, and nothing has run, where two inputs share memory that the entry writes:
  /// for programs that were traced, where each has memory of its own. Else such a step is the text's.
  bool refuseShared = false;
  /// A missed capture is an error instead of a remark.
  bool requireCapture = false;
  /// Called before each capture: the entry, how many of its partitions are captured or quarantined,
  /// and how many it has.
  std::function<void(const std::string& entry, int64_t done, int64_t total)> onCapture;
  /// True for an error that asks the whole program to end, as Ctrl-C does in code of Python's: it ends
  /// the step, also where it broke a capture, which is undone and comes again in the next step.
  std::function<bool(const std::exception&)> isInterrupt;
  /// Makes what is held while a partition is captured, or captured once more for its numbers.
  std::function<std::shared_ptr<void>()> whileCapturing;
  /// Sees the buffers before they are placed. Tests shorten lives with it, to prove that poison
  /// finds that out.
  std::function<void(std::vector<Buffer>&)> editBuffers;
};

class KernelSettings;  // runtime/device/kernel_settings.h

enum class PartitionState : uint8_t { Cold, WarmedUp, Captured, Quarantined };

/// What happened so far; for reports.
struct RuntimeStats {
  int64_t steps = 0;
  int64_t uncapturedSteps = 0;  // warm-ups included
  int64_t captures = 0;
  int64_t replays = 0;  // launches of partitions
  int64_t hostCalls = 0;
  int64_t stagedBytes = 0;        // in the last step
  int64_t copiedResultBytes = 0;  // in the last step
  int64_t arenaBytes = 0;         // MemoryPlan::bytes of the plan in force
  int64_t arenaLoad = 0;          // MemoryPlan::load: no plan could take less
  int64_t heldBytes = 0;          // of the arena, from a forward to its backward
  int64_t captureSets = 0;        // for how many sets of addresses an entry is captured, at most
};

/// One program, ready to run. Steps of several threads, dropCaptures() and shutdown() take turns; what
/// is asked of it (stats(), remarks(), …) is asked between steps. A step that an operator of a running
/// step brings about, on its thread or in a backward on autograd's, takes no turn: it runs uncaptured.
class Runtime {
 public:
  /// `program` must have passed emit-runtime-calls (TORCH_CHECK). Tensors that its text places on the
  /// program's compute device are taken to be on device->tensorDevice().
  Runtime(Program program, std::unique_ptr<Device> device, RuntimeOptions options = {});
  /// One more of the program that `other` runs, which may be shut down: nothing is read or found out again
  /// that the program alone decides. Addresses, memory, captures, statistics and remarks are its own.
  /// TORCH_CHECK that the device is such a one, and the policy of results the same. `other` may be running a
  /// step.
  Runtime(const Runtime& other, std::unique_ptr<Device> device, RuntimeOptions options = {});
  ~Runtime();

  /// Runs one entry. `inputs`: one value an entry input, in order (Tensor, int, …); an RNG state may
  /// be None: the device's default generator. Returns one value an entry output, in order; results
  /// are the caller's (law 5); saved values are lent until the entry that reads them has run.
  /// Throws c10::Error naming the input where shape, dtype or device differ from the program's types;
  /// nothing has run then. `settings`: those in force, of a caller who has asked for them already.
  std::vector<c10::IValue> run(const std::string& entry, std::vector<c10::IValue> inputs,
                               const KernelSettings* settings = nullptr);

  struct Straight {
    bool ran = false;
    std::vector<double> counts;
  };
  /// run() for an entry without results whose inputs stay with the caller, where nothing differs from the
  /// last steps but numbers, and the work is launches alone. Where that is not so, or not known, nothing has
  /// run, and `counts` is empty: run() does it then, and says what is to be said.
  /// `watched`: inputs that are CPU tensors of one number. `counts`: the values that they must have, each
  /// value once. Where they have others nothing has run, and those are returned; else the values that they
  /// have behind the step.
  Straight runStraight(const std::string& entry, const std::vector<c10::IValue>& inputs,
                       const std::vector<int64_t>& watched, const std::vector<double>& counts);

  /// run() on the uncaptured path, whatever is captured: lent inputs keep their bits, so they can be
  /// given to another run.
  std::vector<c10::IValue> runUncaptured(const std::string& entry, std::vector<c10::IValue> inputs);

  /// The same, and each call is marked with its number for whoever watches (runtime/device/step_mark.h).
  std::vector<c10::IValue> runTimed(const std::string& entry, std::vector<c10::IValue> inputs);

  /// These saved values of an entry have one holder, who has all of them or none and shows them to
  /// nobody but the program's entries: a step makes tensors for them only where they lie elsewhere than
  /// in the step before.
  void holdTogether(const std::string& entry, const std::vector<int64_t>& outputs);

  /// `other` runs the same program text with the same options, for other calls in flight: from now on what
  /// either records in its warm-up holds for both. Before the first run.
  void warmUpWith(const Runtime& other);
  /// `other` runs the same graph for other sizes: what its warm-up found out of calls and results holds here,
  /// too, and one recorded run is enough where two of its own agreed. Before the first run.
  void learnFrom(const Runtime& other);

  const Program& program() const;
  Device& device();
  const RuntimeStats& stats() const;
  Remarks& remarks();
  /// State of each partition of an entry, by index.
  std::vector<PartitionState> partitionStates(const std::string& entry) const;
  /// Numbers that are written into the work of captured partitions before its replays, and in
  /// how many kernels they stand.
  struct WrittenNumbers {
    int64_t numbers = 0, kernels = 0;
  };
  WrittenNumbers writtenNumbers() const;
  /// One captured call, and how a profiler's trace numbers the work that it left in its graph: `first`, and
  /// the next ones, `count` in all.
  struct TracedCall {
    const Node* node = nullptr;
    const std::string* entry = nullptr;
    int64_t partition = 0;
    uint64_t first = 0;
    size_t count = 0;
  };
  /// Of every capture that may be replayed yet. A call that left no work in its graph has none.
  std::vector<TracedCall> tracedCalls() const;
  /// The memory plan in force (recorded sizes, temporaries included); empty before warm-up.
  const MemoryPlan& memoryPlan() const;
  /// True if a partition holds a collective: its captures must go before the process groups do.
  bool communicates() const;
  /// If the program has collectives of `group`, or any where it is "": destroys executables alone, and
  /// lets go of the process groups. For before they are destroyed; steps to come capture anew.
  void dropCaptures(const std::string& group = "");
  /// Whether saved values that lie in the arena are held: a forward would run uncaptured now.
  bool holdsSaved() const;
  /// Whether `entry` reads what another one saved.
  bool readsSaved(const std::string& entry) const;
  /// Which of these inputs of `entry` share memory that it writes, in words; "" where none do.
  std::string sharedInputs(const std::string& entry, const std::vector<c10::IValue>& inputs) const;
  /// Whether saved values among the inputs of `entry` lie in this program's arena.
  bool hasSaved(const std::string& entry, const std::vector<c10::IValue>& inputs) const;
  /// Destroys executables, then the arena. Idempotent; the destructor calls it. Results live on.
  void shutdown();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace gravure
