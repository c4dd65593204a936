#pragma once
// The inputs of a program's entries, drawn by type and role: for a proof, which runs one program in
// several forms.

#include "ir/core/program.h"

#include <ATen/core/ivalue.h>

#include <map>
#include <set>
#include <string>
#include <vector>

namespace gravure::tool {

/// Values by entry and by the name of the input's role, as inputs.pt holds them.
using SavedInputs = std::map<std::string, std::map<std::string, c10::IValue>>;

/// What an input is called: its role and its name, or its value's where it has none.
std::string inputLabel(const Entry& entry, size_t index);

/// Values by label and step: the same for the same seed, whoever asks. With saved inputs, drawn as
/// `gravure run` draws them; else from the types. Only the program knows which sizes that types leave open
/// are equal, and which ints are sizes, so they are drawn by `attempt`: at first all open sizes are 4 and
/// ints in tensors 0 or 1; then some sizes agree, and every other time a row of ints adds up to a size of
/// an input, as the lengths of its pieces do.
class DrawnInputs {
 public:
  DrawnInputs(const Program& program, uint64_t seed, const SavedInputs* saved);
  void setAttempt(uint64_t attempt) { attempt_ = attempt; }
  /// A value of its own. None for the default generator; a Generator for a paired state.
  c10::IValue draw(const Entry& entry, size_t index, int64_t step) const;
  uint64_t seedOf(int64_t step) const;

 private:
  int64_t openSize(const std::string& key) const;
  at::Tensor lengths(int64_t count, at::ScalarType dtype, uint64_t seed) const;

  uint64_t seed_;
  const SavedInputs* saved_;
  uint64_t attempt_ = 0;
  std::set<int64_t> sizes_;  // of inputs
};

/// The caller's tensors in one form of a program: what he keeps stays at its address, user inputs and
/// tangents are new in each step.
class InputSide {
 public:
  explicit InputSide(const DrawnInputs& drawn) : drawn_(drawn) {}
  void beginStep(int64_t step);
  /// In the next step, what the caller keeps is elsewhere.
  void moveKept();
  /// Of this step, drawn when first asked for. Saved values are None.
  std::vector<c10::IValue> inputsOf(const Entry& entry);

 private:
  const DrawnInputs& drawn_;
  int64_t step_ = 0;
  std::map<std::string, c10::IValue> kept_, given_;
  std::vector<c10::IValue> old_;  // so that nothing new comes to lie where it lay
};

}  // namespace gravure::tool
