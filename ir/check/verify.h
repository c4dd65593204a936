#pragma once
// The verifier: whether a program keeps the rules of programs.

#include "ir/core/program.h"

namespace gravure {

/// Throws c10::Error (TORCH_CHECK) naming entry, node and source line where the program breaks a rule:
/// - roles describe inputs and outputs one by one; mutation and alias outputs name tensor inputs;
/// - each value is defined once, before its uses, in scope; blocks of cudagraph:: nodes are isolated;
/// - each operator is known, its arguments fit its schema's types, its outputs the schema's returns;
/// - `rng(…)` is a Generator or a saved state; inputs that are RNG states name devices;
/// - `forward`'s saved outputs and `backward`'s saved inputs match by name and type;
/// - each result of a collective is waited for, by whatever name (ir/memory/storage_accesses.h);
/// - what compiled code is donated nobody needs behind it, or has but the program: it is made there, or
///   saved for this entry alone, and is no operand of the code twice;
/// - only known attributes of cudagraph:: nodes occur.
/// Linear in nodes plus edges.
void verifyProgram(const Program& program);

}  // namespace gravure
