#pragma once
// Inputs that the caller gives at another address in each step although he keeps them, as a buffer that
// code reassigns: `self.mean = 0.9 * self.mean + x`.

#include "runtime/program/instruction.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace gravure {

/// Of one entry. A moving input is copied to a tensor of the runtime's own before each step that is
/// captured or replayed, and captures read it there. What the program writes to it is copied back behind
/// the step, so that the caller's tensor has it (design law 2).
class MovingInputs {
 public:
  explicit MovingInputs(const EntryCode& code);

  /// Notes that an input lies at `address`, and not where it was captured. True if it does so again and
  /// again: in two steps running at two addresses, or three times in a short while.
  bool moves(size_t input, const void* address, int64_t run);
  /// "", or why this one cannot be copied: a result would be a view of the copy.
  std::string whyNot(size_t input, const at::Tensor& value) const;
  /// From now on it is copied. Throws c10::Error if there is no memory for that.
  void stage(size_t input, const at::Tensor& value);

  bool empty() const { return staged_.empty(); }
  bool isStaged(size_t input) const { return !last_.empty() && last_[input].staged; }
  /// Index of the first staged input that is laid out otherwise than its copy, or shares memory with
  /// another input that the program writes; -1 if all can be copied.
  int64_t firstUncopyable(const std::vector<c10::IValue>& inputs) const;
  /// The copy that captures read.
  const at::Tensor& copyOf(size_t input) const;

  /// Before a step: copies, and puts the copies in the place of `inputs`.
  void copyIn(std::vector<c10::IValue>& inputs);
  /// Behind it: copies back what the program has written.
  void copyBack();
  /// The same where the step failed: whatever becomes of it.
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

  const EntryCode& code_;
  std::vector<Seen> last_;  // by input
  std::vector<Staged> staged_;
};

}  // namespace gravure
