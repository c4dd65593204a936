#pragma once
// Inputs that the caller keeps, and gives at another address in each step: a buffer that code reassigns,
// as in `self.mean = 0.9 * self.mean + x`.

#include "runtime/program/instruction.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace gravure {

/// Those of one entry. Captures read a moving input from a copy of the runtime's own, which is made before
/// each step that is captured or replayed. What the program writes to the copy is copied back behind the
/// step, so that the caller's tensor has it (law 2).
class MovingInputs {
 public:
  explicit MovingInputs(const EntryCode& code);

  /// Notes that in run `run` of the entry an input lies at `address`, and not where it was captured. True
  /// if it keeps moving: at another address than in the run before, which had moved it, too; or for the
  /// third time in a few runs.
  bool moves(size_t input, const void* address, int64_t run);
  /// Why an input cannot be copied, "" if it can: it is no plain tensor, or a result would be a view of the
  /// copy.
  std::string whyNot(size_t input, const at::Tensor& value) const;
  /// Has an input copied from now on. Throws c10::Error if there is no memory for that.
  void stage(size_t input, const at::Tensor& value);

  bool empty() const { return staged_.empty(); }
  bool isStaged(size_t input) const { return !last_.empty() && last_[input].staged; }
  /// Index of the first staged input that is laid out otherwise than its copy, -1 if there is none.
  int64_t firstOtherLayout(const std::vector<c10::IValue>& inputs) const;
  /// Index of the first staged input that cannot be copied this time, -1 if there is none: of another layout,
  /// or one that shares memory with another input and either is written.
  int64_t firstUncopyable(const std::vector<c10::IValue>& inputs) const;
  /// The copy that captures read.
  const at::Tensor& copyOf(size_t input) const;

  /// Before a step: copies the staged inputs, and replaces them in `inputs` by their copies.
  void copyIn(std::vector<c10::IValue>& inputs);
  /// Behind a step: copies back what the program has written.
  void copyBack();
  /// Behind a step that failed: copies back what can be, and says nothing of what cannot.
  void abandon() noexcept;
  /// No input is staged any more.
  void forget();

 private:
  struct Seen {
    const void* address = nullptr;
    int64_t run = -1;  // of the entry
    int times = 0;
    bool staged = false;
  };
  struct Staged {
    size_t input = 0;
    bool written = false;
    at::Tensor copy;
    at::Tensor original;  // while a step runs, if it is written
  };

  bool hasOtherLayout(const Staged& staged, const c10::IValue& value) const;

  const EntryCode& code_;
  std::vector<Seen> last_;  // by input
  std::vector<Staged> staged_;
};

}  // namespace gravure
