#pragma once
// Compiled code that stands in a program as one operator call. Python registers the operators
// (python/gravure/graphs/compiled_ops.py):
//   gravure::compiled(str name, int calls, Tensor[] inputs, int[] numbers=[]) -> Tensor[]
//   gravure::compiled_random        the same, for code that draws random numbers
//   gravure::compiled_communicating(str name, int calls, Tensor[] inputs, str[] groups,
//                                   str[] collectives, int[] numbers=[]) -> Tensor[]
//   gravure::compiled_communicating_random   the same, for code that draws, too
//   gravure::compiled_donated(str name, int calls, Tensor[] inputs, Tensor(a!)[] donated) -> Tensor[]
// Each result is a tensor of its own; inputs are not written. Donated operands are: the code uses their
// memory for what it makes. So nobody may need them behind it, which the verifier asks for
// (ir/check/verify.h). `calls`: the operator calls that the code stands for.
// Code that communicates has collectives with all their waits in it: `collectives` has a line for each, in
// the order in which they start, with what must be alike on all ranks, and `groups` its group.

#include "ir/core/program.h"

#include <llvm/ADT/SmallVector.h>

#include <cstdint>
#include <string>

namespace gravure {

/// The operator calls that compiled code stands for, at least 1; 0 if `node` is something else.
int64_t compiledCalls(const Node* node);

/// One collective that compiled code performs.
struct InnerCollective {
  std::string group;  // its name
  std::string text;   // the same on all ranks
};
/// Those of `node`, in order; none if it is something else.
llvm::SmallVector<InnerCollective, 4> innerCollectives(const Node* node);

/// What `node` is given for good.
llvm::SmallVector<Value*, 2> donatedOperands(const Node* node);

}  // namespace gravure
