#pragma once
// The values that tensors of one number have, read from Python without a call of an operator. An optimizer
// has a counter for each parameter.

#include <cstdint>

namespace gravure {

/// A function of Python's as direct_calls.h makes them, of a list of tensors: the values that they have, in
/// order, each once (by its bits), as a list of floats; None where one of them is no plain tensor of one float
/// or double on the CPU, or there are too many values. 0 where makeDirectCall() is.
int64_t makeDistinctValues();

}  // namespace gravure
