#pragma once
// Whether the results of a served call lie where the plan has them.
//
// Allocations are matched by size and order. A call that allocates more than it did in warm-up could
// be given an offset that was meant for another of its allocations of the same size, and lose it when
// that one's planned life ends.

#include "runtime/device/arena_session.h"
#include "runtime/program/instruction.h"

#include <ATen/core/stack.h>

namespace gravure {

/// True if a result that `call` left on the stack lies in the arena, and not at its planned offset.
bool anyMisplaced(const Call& call, const torch::jit::Stack& stack, const ArenaSession& session);

/// Replaces each such result by a copy in PyTorch's memory.
void copyMisplaced(const Call& call, torch::jit::Stack& stack, ArenaSession& session);

}  // namespace gravure
