#pragma once
// A program flattened to what the runtime executes, one instruction after another.

#include "ir/program.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

namespace gravure {

/// Values live in numbered slots of a frame.
using Slot = int32_t;
constexpr Slot kNoSlot = -1;

/// How one parameter of a call is filled: a constant, a slot, or a list (or tuple) of such.
struct Operand {
  enum class Kind : uint8_t { Constant, FromSlot, List };
  Kind kind = Kind::Constant;
  Slot slot = kNoSlot;
  bool wrapNumber = false;  // a number that fills a Tensor parameter
  bool toInt = false;       // a bool that fills a Scalar parameter
  c10::IValue constant;
  c10::TypePtr listType;    // List: type of the list the operator takes
  std::vector<Operand> members;
};

/// One operator call, compiled: what to push, what to call, where the outputs go.
struct Call {
  const Node* node = nullptr;  // for messages and remarks; outlived by the program
  int64_t step = -1;           // Timeline step
  std::optional<c10::OperatorHandle> handle;
  std::function<void(torch::jit::Stack&)> operation;  // where there is no handle
  std::vector<Operand> operands;
  Slot rng = kNoSlot;          // generator or saved state this call draws from
  std::vector<Slot> outputs;
  bool unpackList = false;     // its one list result fills all outputs
  std::vector<Slot> releases;  // slots whose value is not read after this call

  /// Pushes the operands taken from `frame`.
  void push(const std::vector<c10::IValue>& frame, torch::jit::Stack& stack) const;
  /// Calls the operator; `stack` holds the operands before and the results after.
  void run(torch::jit::Stack& stack) const;
};

}  // namespace gravure
