#pragma once
// Compiled code that stands in a program as one operator call. Python registers the operators
// (python/gravure/graphs/compiled_ops.py):
//   gravure::compiled(str name, int calls, Tensor[] inputs, int[] numbers=[]) -> Tensor[]
//   gravure::compiled_random        the same, for code that draws random numbers
//   gravure::compiled_donated(str name, int calls, Tensor[] inputs, Tensor(a!)[] donated) -> Tensor[]
// Each result is a tensor of its own; inputs are not written. Donated operands are: the code uses their
// memory for what it makes. So nobody may need them behind it, which the verifier asks for
// (ir/check/verify.h). `calls`: the operator calls that the code stands for.

#include "ir/core/program.h"

#include <llvm/ADT/SmallVector.h>

#include <cstdint>

namespace gravure {

/// The operator calls that compiled code stands for, at least 1; 0 if `node` is something else.
int64_t compiledCalls(const Node* node);

/// What `node` is given for good.
llvm::SmallVector<Value*, 2> donatedOperands(const Node* node);

}  // namespace gravure
