#pragma once
// Compiled code that stands in a program as one operator call. Python registers the operators
// (python/gravure/graphs/compiled_ops.py):
//   gravure::compiled(str name, int calls, Tensor[] inputs, int[] numbers=[]) -> Tensor[]
//   gravure::compiled_random        the same, for code that draws random numbers
// Each result is a tensor of its own; inputs are not written. `calls`: the operator calls that the
// code stands for.

#include "ir/core/program.h"

#include <cstdint>

namespace gravure {

/// The operator calls that compiled code stands for, at least 1; 0 if `node` is something else.
int64_t compiledCalls(const Node* node);

}  // namespace gravure
