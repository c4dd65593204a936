#pragma once
// The life of one partition: cold, warmed up, captured and replayed, or quarantined.

#include "ir/torch_private/tensor_fields.h"
#include "runtime/device/arena_session.h"
#include "runtime/device/device.h"
#include "runtime/program/guards.h"
#include "runtime/program/instruction.h"
#include "runtime/runtime.h"
#include "runtime/step/number_patches.h"
#include "runtime/step/read_memory.h"

#include <llvm/ADT/STLFunctionalExtras.h>

#include <memory>
#include <string>
#include <vector>

namespace gravure {

/// A value that a capture exports and that is a view of an operand: of whatever storage the operand has in
/// that step. A storage may be given other memory, and another storage what it had, as FSDP2 does.
struct ViewOfOperand {
  size_t output = 0;
  int64_t member = -1;  // of a list, -1: the output itself
  size_t operand = 0;
  int64_t distance = 0;                  // bytes from the operand's first element to the view's
  const c10::StorageImpl* of = nullptr;  // the storage that the exported value has; nullptr: none
};

/// A value that a capture exports from the arena to host nodes. One of them may empty its storage, as
/// torchtitan's offloading does behind a copy: the next replay exports it on another one.
struct ArenaOutput {
  size_t output = 0;
  const void* memory = nullptr;  // where its storage begins
  size_t bytes = 0;
};

/// What one capture of a partition made. Whoever may replay it holds it.
struct CapturedPartition {
  std::unique_ptr<Executable> executable;
  /// Held while it is the partition's; known alone while another one is.
  const std::unique_ptr<ReadMemory> memory = std::make_unique<ReadMemory>();
  std::vector<c10::IValue> exported;                    // one a launch output
  std::vector<ViewOfOperand> views;                     // among them
  std::vector<ArenaOutput> forHostNodes;                // likewise
  std::vector<std::pair<size_t, OperandGuard>> guards;  // by operand that is no entry input
  std::vector<std::pair<Slot, OperandGuard>> inputGuards;
  /// Numbers that no guard covers, since replays are given them; nullptr if there is none.
  std::unique_ptr<NumberPatches> patches;
  /// Floats that a guard covers, by operand, and why.
  std::vector<std::pair<size_t, std::string>> baked;

  /// Index of the first operand that is not what was captured, of those that no input guard covers;
  /// -1 if the executable may be replayed.
  int64_t changedOperand(const Launch& launch, const Frame& frame) const {
    for (const auto& [operand, guard] : guards) {
      if (!guard.holds(frame[launch.operands[operand]])) return static_cast<int64_t>(operand);
    }
    return -1;
  }
  std::string difference(int64_t operand, const c10::IValue& value) const;
  /// True if it may be replayed with the numbers in `frame`.
  bool numbersHold(const Frame& frame) const { return !patches || patches->hold(frame); }

  /// Other captures are in force from now on: what it reads is known alone.
  void letGo();
  /// False, and it is of no use any more, where some of that is gone.
  bool holdAgain();

  /// Launches with the numbers in `frame`, which hold, then puts the outputs into their slots. `inputs`:
  /// those of the entry, where the frame does not have them; or nullptr.
  void replay(const Launch& launch, Frame& frame, const std::vector<c10::IValue>* inputs) {
    if (patches) patches->write(frame, *executable);
    executable->replay();
    for (ViewOfOperand& view : views) {
      const auto slot = static_cast<size_t>(launch.operands[view.operand]);
      const c10::IValue& operand = inputs && slot < inputs->size() ? (*inputs)[slot] : frame[slot];
      if (TensorFields::storageOf(*operand.unsafeToTensorImpl()) != view.of)
        attach(view, operand.toTensor());
    }
    for (const ArenaOutput& each : forHostNodes) {
      if (exported[each.output].toTensor().storage().data() != each.memory) refill(each);
    }
    for (size_t i = 0; i < exported.size(); ++i) frame[launch.outputs[i]] = exported[i];
  }

 private:
  void refill(const ArenaOutput& emptied);
  void attach(ViewOfOperand& view, const at::Tensor& operand);
  void changeTensor(const ViewOfOperand& view,
                    llvm::function_ref<at::Tensor(const at::Tensor&)> change);
};

class Partition {
 public:
  PartitionState state() const { return state_; }
  void warmUp() {
    if (state_ == PartitionState::Cold) state_ = PartitionState::WarmedUp;
  }
  /// Its calls run one by one: `forGood`, or until triesAgain().
  void quarantine(bool forGood);
  /// Of a quarantined one that is about to run: true if it is to be captured now. A cause that may have
  /// passed is given a few tries, each after four times as many runs as the one before.
  bool triesAgain();
  /// Captures that failed since the last one that did not.
  int failures() const { return failures_; }
  /// Drops the executable and what it held: the next step captures again.
  void reset();
  /// `captured`, which it had before, is in force again.
  void putBack(std::shared_ptr<CapturedPartition> captured);

  /// Captures `launch` from the operands in `frame`, which keeps them; on success the outputs are in
  /// exported form and the state is Captured. Throws NotCapturable where it may not be captured, and
  /// whatever else broke the capture; then frame and device are as before.
  void capture(const Launch& launch, const EntryCode& code, Frame& frame, torch::jit::Stack& stack,
               Device& device, ArenaSession& session);

  /// Of a captured one whose numbers do not hold: captures what they make of its work, and returns
  /// whether they hold now. Throws as capture().
  bool proveNumbers(const Launch& launch, Frame& frame, torch::jit::Stack& stack, Device& device,
                    ArenaSession& session);

  /// nullptr unless the state is Captured.
  const std::shared_ptr<CapturedPartition>& captured() const { return captured_; }

 private:
  void checkOperands(const Launch& launch, const EntryCode& code, const Frame& frame,
                     const Slab& slab) const;

  PartitionState state_ = PartitionState::Cold;
  int failures_ = 0;
  int64_t patience_ = 0;  // runs until the next try, this one included; 0: none comes
  std::shared_ptr<CapturedPartition> captured_;
};

}  // namespace gravure
