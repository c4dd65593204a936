#pragma once
// What an entry's calls compute of single numbers, as one list of operations: each once, however many
// parameters have it. An optimizer's step makes the same corrections of each parameter's step count.

#include "ir/torch_private/tensor_fields.h"
#include "runtime/program/instruction.h"

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace gravure {

/// Made for values as they were in one step. Step counts that were equal then, and stay so, are counted and
/// computed with once; run() proves in each step that they did.
class NumberCode {
 public:
  /// Of an entry all of whose instructions are launches and calls on numbers: floats among its inputs, and
  /// plain CPU tensors of one float or double; those that it counts in no launch reads. nullopt, and `why`,
  /// for another one.
  /// `watched`: inputs that are such tensors, whose values counts() says.
  static std::optional<NumberCode> of(const EntryCode& code, const std::vector<c10::IValue>& inputs,
                                      const std::vector<int64_t>& watched, std::string& why);

  /// Computes all of them from `inputs`, in the bits of the calls, and puts those that launches take into
  /// `frame`. False where tensors of one number lie elsewhere than they did, where two that were equal
  /// differ, or where an operator would refuse: then nothing has changed but slots of `frame`.
  bool run(const std::vector<c10::IValue>& inputs, Frame& frame);
  /// Behind run(): counts in the tensors.
  void count() const;
  /// Behind run(): the values of the watched tensors before the step (`behind`: after it), each once.
  std::vector<double> counts(bool behind) const;

  /// How many calls it stands for.
  int64_t calls() const { return calls_; }
  /// How many operations that became.
  size_t operations() const { return operations_.size(); }
  /// Inputs that run() looks at itself.
  const std::vector<size_t>& inputs() const { return inputs_; }

 private:
  friend class NumberCompiler;

  enum class Kind : uint8_t { Add, Sub, Mul, Div, Pow, Negate, CountFloat };
  struct Operation {
    Kind kind = Kind::Add;
    int32_t a = 0, b = 0;  // indices into values_
    auto operator<=>(const Operation&) const = default;
  };
  /// A tensor of one number.
  struct Cell {
    void* address = nullptr;
    uint32_t input = 0;
    int32_t first = 0;     // its value before the step: index into values_
    int32_t last = -1;     // behind it; -1: nothing counts in it
    bool isFloat = false;  // else double
    bool leads = false;    // the first one with that value
    // By which it is known again: what holds() said yes of.
    const void* memory = nullptr;  // of its storage; none where there was none yet
    FieldWords words = {};
    c10::DispatchKeySet keys;
  };
  static bool holds(Cell& cell, const c10::TensorImpl& tensor);

  int64_t calls_ = 0;
  std::vector<size_t> inputs_;
  std::vector<std::pair<size_t, int32_t>> floats_;  // inputs, and where their values go
  std::vector<Cell> cells_;
  std::vector<Operation> operations_;  // their results lie at the end of values_
  std::vector<double> values_;         // constants, floats, tensors' values, results
  size_t firstResult_ = 0;
  std::vector<std::pair<Slot, int32_t>> given_;       // to launches
  std::vector<std::pair<int32_t, int32_t>> watched_;  // values before and after the step
};

}  // namespace gravure
