#pragma once
// One runtime: what it keeps from step to step, and its functions, by the file of this folder that has them.

#include "runtime/device/saving_programs.h"
#include "runtime/layout/arena_layout.h"
#include "runtime/ranks/communication.h"
#include "runtime/results/results.h"
#include "runtime/runtime.h"
#include "runtime/step/entry_state.h"
#include "runtime/step/executor.h"
#include "runtime/step/flat_program.h"
#include "runtime/step/moving_inputs.h"
#include "runtime/step/shared_warm_up.h"
#include "runtime/step/step_path.h"

#include <llvm/ADT/STLFunctionalExtras.h>

#include <unistd.h>

#include <atomic>
#include <mutex>
#include <optional>

namespace gravure {

/// The values of a step's inputs that the step's end needs.
class KeptInputs {
 public:
  KeptInputs(const EntryCode& code, const std::vector<c10::IValue>& inputs);
  /// Of one that the program writes, or that an output is.
  const c10::IValue& operator[](size_t index) const { return values_[index]; }
  /// The program wrote into these below PyTorch's counters.
  void bumpVersions() const;

 private:
  const EntryCode& code_;
  std::vector<c10::IValue> values_;  // None where nothing needs it; empty where nothing needs any
  /// Of those that compiled code writes over, which gives them back itself.
  std::vector<c10::VariableVersion> donated_;
};

/// Has a served step read its moving inputs from their copies; what was written there goes back to the
/// caller's tensors also when the step throws.
class MovedInputs {
 public:
  MovedInputs(MovingInputs& moving, std::vector<c10::IValue>& inputs, bool served)
      : moving_(moving), any_(served && !moving.empty()) {
    if (any_) moving_.copyIn(inputs);
  }
  ~MovedInputs() {
    if (any_) moving_.abandon();
  }
  MovedInputs(const MovedInputs&) = delete;
  MovedInputs& operator=(const MovedInputs&) = delete;
  void copyBack() const {
    if (any_) moving_.copyBack();
  }

 private:
  MovingInputs& moving_;
  const bool any_;
};

class Runtime::Impl {
 public:
  /// `flat`: for this device and these options.
  Impl(std::shared_ptr<const FlatProgram> flat, std::unique_ptr<Device> device,
       RuntimeOptions options);
  ~Impl() { shutdown(); }

  std::vector<c10::IValue> run(const std::string& entry, std::vector<c10::IValue> inputs,
                               bool uncaptured, bool timed = false,
                               const KernelSettings* settings = nullptr);
  Straight runStraight(const std::string& entry, const std::vector<c10::IValue>& inputs,
                       const std::vector<int64_t>& watched, const std::vector<double>& counts);
  void shutdown();

  // One step at a time, and steps inside of others (runtime.cpp).
  std::unique_lock<std::mutex> waitForTurn(const char* what);
  std::vector<c10::IValue> runInside(EntryState& entry, std::vector<c10::IValue> inputs,
                                     bool keepsLent);
  void copyDonated(const EntryState& entry, std::vector<c10::IValue>& inputs);
  void noteInsideSteps();
  void installArena(std::shared_ptr<Slab> slab, std::shared_ptr<LoanBook> loans);
  void joinInFlight();

  EntryState& find(const std::string& entry);

  // Which path a step takes (choose_path.cpp).
  StepPath choosePath(EntryState& entry, const std::vector<c10::IValue>& inputs, bool uncaptured);
  bool sealedPath(EntryState& entry, const std::vector<c10::IValue>& inputs, StepPath& path);
  bool enterSealed(EntryState& entry, const Seal& seal, const std::vector<c10::IValue>& inputs,
                   StepPath& path);
  StepPath unsealedPath(EntryState& entry, const std::vector<c10::IValue>& inputs, bool uncaptured);
  void checkMemory(const EntryState& entry, const std::vector<c10::IValue>& inputs) const;
  static std::string sharedInputs(const EntryState& entry, const std::vector<c10::IValue>& inputs);
  StepPath servedPath(EntryState& entry, const std::vector<c10::IValue>& inputs);
  static void checkInputs(const EntryState& entry, const std::vector<c10::IValue>& inputs);
  void watchResults(const EntryState& begins);
  bool resultsHeld(EntryState& entry);
  static bool writesOver(const EntryState& entry, const EntryState& lender, size_t output);
  bool layOutAnew(const EntryState& next);
  void enterArena(EntryState& entry, bool lent, const Seal* seal, StepPath& path);
  std::string missed(const std::string& key, const std::string& name, std::string message);
  void noteUncaptured(EntryState& entry, const std::string& why, const std::string& cure);
  std::string savedHeld(EntryState& entry);
  bool producersAgree(const EntryState& entry, bool lent) const;
  bool givenLentValues(const EntryState& entry, const std::vector<c10::IValue>& inputs) const;
  static bool givenValuesIn(const Slab* slab, const EntryState& entry,
                            const std::vector<c10::IValue>& inputs);
  void checkForCaller(const EntryState& entry, const std::vector<c10::IValue>& inputs);
  void checkLentValues(const EntryState& entry, bool lent) const;

  // What differs from what was captured (differences.cpp).
  static void noteStrides(EntryState& entry, const std::vector<c10::IValue>& inputs);
  std::string inputsDiffer(EntryState& entry, const std::vector<c10::IValue>& inputs);
  std::string stridesDiffer(EntryState& entry, const std::vector<c10::IValue>& inputs);
  std::string remaindersDiffer(EntryState& entry, const std::vector<c10::IValue>& inputs);
  std::string settingsDiffer(EntryState& entry);
  bool dropoutHolds(const EntryState& entry) const;
  std::string dropoutDiffers(EntryState& entry);
  std::string threadsDiffer(EntryState& entry);
  bool acceptChanges(EntryState& entry, const std::vector<c10::IValue>& inputs,
                     std::vector<ChangedInput> changed, const std::string& found);
  bool alternatesAddresses(EntryState& entry, const std::vector<c10::IValue>& inputs,
                           const std::vector<ChangedInput>& changed, bool& returns);
  bool stageMoving(EntryState& entry, const std::vector<c10::IValue>& inputs,
                   const std::vector<ChangedInput>& changed);
  void captureBeside(EntryState& entry);
  bool makeCurrent(EntryState& entry, const Seal& seal);
  void warmUpAnew(const std::string& found);
  static void forgetCaptures(EntryState& entry);
  static void forgetPartitions(EntryState& entry);

  // The same decided with the other ranks (common_path.cpp).
  StepPath commonPath(EntryState& entry, const std::vector<c10::IValue>& inputs, bool uncaptured);
  StepPath votedPath(EntryState& entry, const std::vector<c10::IValue>& inputs, bool uncaptured);
  Vote voteOf(const EntryState& entry, const StepPath& path, bool asked) const;
  void useNewGroups();
  void refuseCollectives();

  // Straight steps (straight_step.cpp).
  static const Seal* straightSeal(EntryState& entry, const std::vector<c10::IValue>& inputs,
                                  const std::vector<int64_t>& watched);
  static bool computeNumbers(EntryState& entry, const std::vector<c10::IValue>& inputs,
                             const std::vector<int64_t>& watched);
  void launchAll(EntryState& entry, const Seal& seal, const std::vector<c10::IValue>& inputs);

  // The step (runtime.cpp).
  std::vector<c10::IValue> step(EntryState& entry, std::vector<c10::IValue> inputs,
                                const StepPath& path);
  std::vector<c10::IValue> runServed(EntryState& entry, const KeptInputs& kept,
                                     const MovedInputs& moved, const Seal* seal);
  void sealEntry(EntryState& entry, const KeptInputs& kept);
  static void fillFrame(const EntryCode& code, Frame& frame, std::vector<c10::IValue>& inputs,
                        bool served);
  void collectInputGuards(EntryState& entry);
  void remarkMismatches(const ArenaSession& session);

  // Results (step_results.cpp).
  std::vector<c10::IValue> takeResults(EntryState& entry, const KeptInputs& kept,
                                       ArenaSession* serving, const Seal* seal = nullptr);
  std::vector<HandOut> handOuts(EntryState& entry, const KeptInputs& kept) const;
  static std::vector<c10::IValue> takeInside(EntryState& entry, const Frame& frame,
                                             const KeptInputs& kept, std::shared_ptr<Slab> slab);

  // Warm-up and planning (warm_up.cpp).
  int64_t mostWarmUps() const;
  int64_t expectedBytes(const EntryState& entry);
  void warmUp(EntryState& entry, llvm::function_ref<void()> run);
  void runRecorded(EntryState& entry);
  void runPlain(EntryState& entry);
  void takeRecord(EntryState& entry, AllocationRecord record);
  void shareRecording(EntryState& entry);
  void followOthers();
  void takeRecording(EntryState& entry, const std::shared_ptr<const EntryRecording>& found);
  bool isTaught(const EntryState& entry) const;
  bool isDropped(size_t entry, size_t output) const;
  bool allWarmedUp() const;
  bool mayPlan() const;
  bool isPartial() const;
  bool hasLateEntry() const;
  static void noteUnread(EntryState& entry);
  std::string plan(const EntryState& next);
  std::shared_ptr<const SharedLayout> layOut(std::vector<Exclusive> reserved);
  void copyHeldOutputs(const std::vector<std::vector<bool>>& dropped);
  ArenaShape shapeOf(const ArenaLayout& layout) const;
  void remarkThreads();
  void forgetArena();
  void installLayout();
  at::Tensor stagedBuffer(const Value* value, int64_t offset) const;

  const std::shared_ptr<const FlatProgram> flat_;  // with runtimes of the same program
  const Program& program_ = flat_->program;
  const DeviceMap& devices_ = flat_->devices;
  const Timeline& timeline_ = flat_->timeline;
  std::unique_ptr<Device> device_;
  RuntimeOptions options_;
  RuntimeStats stats_;
  Remarks remarks_;
  RemarkOnce once_{remarks_};
  std::vector<EntryCode> codes_;  // flat_'s, with what runs have taught
  std::vector<EntryState> entries_;
  std::unique_ptr<Communication> communication_;  // none without collectives in partitions
  std::optional<SavingProgram> saving_;           // once it has run, if it saves values

  // Warm-up.
  std::vector<CallPlanning> planning_;          // by position in the timeline
  std::shared_ptr<SharedWarmUp> shared_;        // with programs of the same text
  std::shared_ptr<const SharedWarmUp> taught_;  // by one of other sizes, if there is one
  int64_t followed_ = 0;                        // version of shared_
  bool apart_ = false;  // what others recorded does not hold here: it warmed up anew

  // The arena in force.
  std::shared_ptr<const ArenaLayout> layout_;  // of a SharedLayout; nullptr while none is planned
  MemoryPlan noPlan_;                          // memoryPlan() then
  std::shared_ptr<Slab> slab_;
  std::shared_ptr<LoanBook> loans_ = std::make_shared<LoanBook>();  // of saved values
  /// The entry that reads the lent values has run over them.
  std::atomic<bool> lentOverwritten_ = false;
  bool planned_ = false;       // there was one at least once
  int64_t arenaRetryAt_ = 0;   // step from which making it is tried again
  int threads_ = 0;            // at::get_num_threads() when it was planned
  int warmUpsAnew_ = 0;        // how often warmUpAnew() had the program begin again
  bool warmUpWanted_ = false;  // it waits until nobody holds saved values

  // The step that runs.
  bool callerCaptures_ = false;  // its stream
  bool timed_ = false;           // its calls are marked, if it runs uncaptured
  KernelSettings settings_;      // in force as it began

  // Threads.
  std::mutex turn_;                       // one step at a time
  std::atomic<bool> running_ = false;     // somebody's turn
  std::mutex arena_;                      // of slab_, which a step inside of another one reads
  std::atomic<int64_t> insideSteps_ = 0;  // not noted yet
  std::atomic<bool> alive_ = true;
  const pid_t process_ = getpid();
};

}  // namespace gravure
