#pragma once
// Copies of what an entry is given, to run it a second time on the same inputs and state.

#include "ir/core/program.h"

#include <ATen/core/ivalue.h>
#include <c10/core/Device.h>

#include <cstddef>
#include <vector>

namespace gravure {

/// Positions of the entry's random states.
std::vector<size_t> drawnInputs(const Entry& entry);

/// Copies that share memory with one another where `values` do, have their strides, and lie where
/// kernels take the same way (the same remainder of the address). A generator is copied with its
/// state; None at a position of `drawn` becomes a copy of the default generator of `device`.
/// c10::OutOfMemoryError where there is no memory for them.
std::vector<c10::IValue> copiesOf(const std::vector<c10::IValue>& values,
                                  const std::vector<size_t>& drawn, c10::Device device);

/// Writes the values of `from` into `to`, which copiesOf made of values of the same kinds.
void refill(const std::vector<c10::IValue>& to, const std::vector<c10::IValue>& from);

/// Other values of the same kinds: tensors of floating point are turned end for end, in place.
void turn(const std::vector<c10::IValue>& values);

}  // namespace gravure
