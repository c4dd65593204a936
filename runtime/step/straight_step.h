#pragma once
// A step that goes straight to its launches: a seal holds, and besides there are calls on numbers alone.
//
// A program of an optimizer's step has thousands of inputs, which are the same tensors in each step. So they
// stay with the caller, are looked at where they are, and no frame is filled with them.

#include "runtime/program/guards.h"
#include "runtime/program/number_code.h"

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace gravure {

/// What one entry has for such steps.
struct StraightStep {
  uint64_t madeFor = ~uint64_t{0};    // Seals::changes() then
  std::optional<NumberCode> numbers;  // none: the entry has no such steps, `why`
  std::string why;
  /// Inputs that only the program's types bind.
  std::vector<std::pair<size_t, const InputCheck*>> free;
};

}  // namespace gravure
