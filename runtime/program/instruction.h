#pragma once
// A program flattened to what the runtime executes, one instruction after another.

#include "ir/core/program.h"
#include "ir/facts/unpacked_list.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>
#include <c10/util/Exception.h>

#include <llvm/ADT/ArrayRef.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace gravure {

/// Values live in numbered slots of a frame.
using Slot = int32_t;
constexpr Slot kNoSlot = -1;
using Frame = std::vector<c10::IValue>;

/// What becomes of a number on its way into a parameter of another type.
enum class NumberUse : uint8_t {
  AsIs,
  Tensor,  // fills a Tensor parameter: a wrapped number, as eager makes one
  Int,     // a bool that fills an int or Scalar parameter
  Double,  // an int that fills a float parameter
};

/// How one parameter of a call is filled: a constant, a slot, or a list (or tuple) of such.
struct Operand {
  enum class Kind : uint8_t { Constant, FromSlot, List, Tuple };
  Kind kind = Kind::Constant;
  NumberUse use = NumberUse::AsIs;
  Slot slot = kNoSlot;
  c10::IValue constant;
  c10::TypePtr elementType;  // List: what the operator takes
  std::vector<Operand> members;

  c10::IValue fetch(const Frame& frame) const;
};

/// How the parameters of a call are filled, in order. Nobody changes them: copies of a call, in the runtimes of
/// one program, have the same ones.
class Operands {
 public:
  Operands() = default;
  explicit Operands(std::vector<Operand> operands)
      : held_(std::make_shared<const std::vector<Operand>>(std::move(operands))), all_(*held_) {}

  const Operand* begin() const { return all_.begin(); }
  const Operand* end() const { return all_.end(); }
  size_t size() const { return all_.size(); }
  const Operand& operator[](size_t at) const { return all_[at]; }

 private:
  std::shared_ptr<const std::vector<Operand>> held_;
  llvm::ArrayRef<Operand> all_;
};

/// One tensor that a call returned in a recorded run, for a capture that computes nothing.
struct RecordedTensor {
  /// The call's own allocation that holds it; -1: it shares an operand's storage.
  int32_t ordinal = -1;
  int32_t operand = -1;  // that operand's position among the tensors of the stack; -1: unknown
  Slot operandSlot = kNoSlot;  // where that operand came from
  int32_t output = -1;         // position among the node's outputs
  int32_t row = -1;            // of the call's row in the ServePlan; -1: not planned
  int64_t byteOffset = 0;      // from the allocation's start, or from the operand's first byte
  int64_t storageBytes = 0;
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  std::vector<int64_t> sizes, strides;
  bool plain = true;       // strided
  bool conjugate = false;  // a view that is conjugated, or negated, when it is read
  bool negative = false;
};

/// An operand that a call let go of before it ended.
struct LetGo {
  Slot slot = kNoSlot;
  static constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
  int64_t before = 0;  // the allocations that the call had made by then, in the later of two runs
  int64_t last = 0;    // in the last run
};

/// What a call returned and allocated in the recorded runs.
struct RecordedCall {
  bool recorded = false;
  bool returnsOther = false;            // something besides tensors, None and lists of tensors
  std::vector<RecordedTensor> tensors;  // in the order of the stack, lists flattened
  static constexpr int32_t kNone = -1, kTensor = -2, kUndefinedTensor = -3;
  std::vector<int32_t> shape;  // one a result: one of these, or n >= 0: a list of n tensors
  std::vector<LetGo> letGo;    // by slot, ascending
};

/// Arena memory that nobody reads after a call.
struct DeadBlock {
  int64_t offset = 0;
  int64_t bytes = 0;
};

struct Call;
/// The same as a call on the operands in a frame, its results put there, without the dispatcher. False, and
/// nothing is done, where the operands are not what it is for.
using QuickCall = bool (*)(const Call&, Frame&);

/// One operator call, compiled: what to push, what to call, where the outputs go.
struct Call {
  const Node* node = nullptr;  // for messages and remarks; outlived by the program
  int64_t position = -1;       // in the Timeline; -1: its allocations are not planned
  std::optional<c10::OperatorHandle> handle;
  std::function<void(torch::jit::Stack&)> operation;  // where there is no handle
  QuickCall quick = nullptr;                          // runtime/program/quick_call.h
  Operands operands;
  Slot rng = kNoSlot;       // generator or saved state this call draws from
  bool draws = false;       // draws random numbers
  bool leavesOpen = false;  // starts a collective that is under way when it returns
  bool letsGo = false;      // of its operands, one after another: compiled code (compiled_op.h)
  std::vector<Slot> outputs;
  std::optional<UnpackedList> unpacked;  // the result whose members fill outputs
  std::vector<Slot> releases;            // slots whose value is not read after this call

  RecordedCall recorded;         // from warm-up
  std::vector<DeadBlock> dying;  // planned blocks that die with this call; only for poisoning

  /// What it draws from: a generator, a saved state, or None for the device's default generator.
  c10::IValue rngIn(const Frame& frame) const {
    return rng == kNoSlot ? c10::IValue() : frame[rng];
  }
  /// Pushes the operands taken from `frame`.
  void push(const Frame& frame, torch::jit::Stack& stack) const;
  /// Calls the operator; `stack` holds the operands before and the results after.
  void run(torch::jit::Stack& stack) const {
    if (handle) {
      handle->callBoxed(stack);
    } else {
      operation(stack);
    }
  }
  /// Moves the results from `stack` to their slots and empties it.
  void store(torch::jit::Stack& stack, Frame& frame) const;
};

/// Adds to what an operator says where it stands in the program, which it cannot know.
void addLocation(c10::Error& error, const Node* node);

/// A partition: calls that are captured together, or run one by one.
struct Launch {
  const Node* node = nullptr;
  int64_t index = -1;  // of the partition
  std::vector<Call> calls;
  std::vector<Slot> operands;
  std::vector<Slot> outputs;    // distinct slots read after it, operands passed through left out
  std::vector<Slot> releases;   // operands not read after it, ascending
  std::vector<int32_t> groups;  // process groups of its collectives: ProgramCollectives::groups
};

/// Copies of the caller's values into the arena: from[i] to to[i].
struct Stage {
  const Node* node = nullptr;
  int64_t position = -1;  // in the Timeline
  std::vector<Slot> from, to;
  std::vector<Slot> releases;
  // As they were in the last warm-up, once there was one:
  std::vector<int64_t> remainders;         // addressRemainder of each
  std::vector<c10::DispatchKeySet> reads;  // readsOf each
};

/// How a value of the arena is handed to the caller.
enum class Ownership : uint8_t {
  Copied,  // as a copy
  Saved,   // lent for one run of the entry that reads it
  Lent,    // lent until the next run of its entry
  Static,  // itself: the next run of its entry writes over it
};

/// Results that leave the arena: from[i] to to[i].
struct Own {
  const Node* node = nullptr;
  int64_t position = -1;  // in the Timeline
  std::vector<Slot> from, to;
  std::vector<Ownership> ownership;  // Copied: here; all else passes on to where results are taken
  std::vector<bool> asEager;         // by operand: CopySource::asEager
  std::vector<Slot> releases;
  std::vector<DeadBlock> dying;
};

struct Instruction {
  enum class Kind : uint8_t { Call, Launch, Stage, Own, Branch };
  Kind kind = Kind::Call;
  uint32_t index = 0;  // into the list of its kind in EntryCode
};

/// prim::If: one of two instruction lists, then moves into the outputs.
struct Branch {
  const Node* node = nullptr;
  Slot condition = kNoSlot;
  std::vector<Instruction> body[2];
  std::vector<std::pair<Slot, Slot>> moves[2];  // from, to
  std::vector<Slot> releases;
};

/// What defines a slot.
enum class SlotSource : uint8_t { Input, Call, Launch, Stage, Own, Branch };

/// One entry, flattened.
struct EntryCode {
  const Entry* entry = nullptr;
  std::vector<Instruction> instructions;
  std::vector<Call> calls;
  std::vector<Launch> launches;
  std::vector<Stage> stages;
  std::vector<Own> owns;
  std::vector<Branch> branches;
  std::vector<Slot> inputs;          // one an entry input
  std::vector<Slot> outputs;         // one an entry output
  std::vector<Ownership> ownership;  // one an entry output
  Slot slots = 0;                    // size of a frame
  std::vector<size_t> written;       // entry inputs that the program writes
  std::vector<size_t> counted;       // of these, those whose versions rise, as in eager
  std::vector<size_t> donated;       // entry inputs that compiled code writes over (compiled_op.h)
  std::vector<int64_t> storages;     // Timeline storage of each slot, -1 if it has none
  bool hasCudnnDropout = false;      // some call uses its state (ir/facts/recurrent_operators.h)
  std::vector<SlotSource> sources;   // by slot
  std::vector<bool> ofInput;         // by slot: an input, or a view of one
  std::vector<bool> readOnHost;      // by slot: read elsewhere than in launches

  /// True if a partition made the value of `slot`, so that its next replay writes there. What it hands
  /// on of an input is not.
  bool isMadeByLaunch(Slot slot) const {
    return sources[slot] == SlotSource::Launch && !ofInput[slot];
  }

  /// Calls visit(Call&) for each call that is not in a branch of prim::If, in program order.
  template <typename Visit>
  void forEachCall(Visit&& visit) {
    visitCalls(*this, visit);
  }
  template <typename Visit>
  void forEachCall(Visit&& visit) const {
    visitCalls(*this, visit);
  }

 private:
  template <typename Code, typename Visit>
  static void visitCalls(Code& code, Visit&& visit) {
    for (const Instruction& instruction : code.instructions) {
      if (instruction.kind == Instruction::Kind::Call) visit(code.calls[instruction.index]);
      if (instruction.kind != Instruction::Kind::Launch) continue;
      for (auto& call : code.launches[instruction.index].calls) visit(call);
    }
  }
};

inline void releaseSlots(const std::vector<Slot>& slots, Frame& frame) {
  for (Slot slot : slots) frame[slot] = c10::IValue();
}

}  // namespace gravure
