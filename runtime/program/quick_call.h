#pragma once
// Calls on single numbers of the host, done without the dispatcher. An optimizer's step has thousands.

#include "runtime/program/instruction.h"

namespace gravure {

/// What does the same in a frame as running `call`: arithmetic on floats, the reading of a CPU tensor's one
/// number, counting in such tensors. nullptr for all else.
QuickCall quickCallOf(const Call& call);

/// A plain CPU tensor of one float or double, without dimensions.
bool isOneNumber(const at::Tensor& tensor);
/// A constant 1: the `alpha` of an addition that counts.
bool isConstantOne(const Operand& operand);

}  // namespace gravure
