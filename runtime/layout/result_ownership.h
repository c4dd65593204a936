#pragma once
// How each result of a program is handed to its caller (law 5).

#include "ir/memory/timeline.h"
#include "runtime/layout/arena_layout.h"
#include "runtime/program/instruction.h"
#include "runtime/runtime.h"

#include <llvm/ADT/STLFunctionalExtras.h>

#include <vector>

namespace gravure {

/// Sets `ownership` of every entry's outputs and of its Own instructions. A result is Lent or Static
/// only where the step allocates it with a shape known in advance, and Lent only if no other result
/// shares its memory, and if it is a gradient, or has `leastLentOutput` bytes and its entry saves values
/// for another one.
void chooseOwnership(const Program& program, const Timeline& timeline, ResultPolicy policy,
                     int64_t leastLentOutput, std::vector<EntryCode>& codes);

/// Before the arena is laid out: of the Lent results that are no gradients, those that are held,
/// `held(entry, output)`, when their entry runs again are copied. (A gradient that is held is found out
/// in the step that would write over it: accumulation holds it for a few steps, and drops it.)
void copyHeldOutputs(std::vector<EntryCode>& codes,
                     llvm::function_ref<bool(size_t, size_t)> held);

/// By Timeline storage, those that Lent and Static results lie in: no other buffer may overlap
/// them until their entry runs again, or, of Lent ones with `droppedInTime(entry, output)`, until the
/// next step begins.
std::vector<Exclusive> reservedStorages(const Timeline& timeline, std::vector<EntryCode>& codes,
                                        llvm::function_ref<bool(size_t, size_t)> droppedInTime);

/// From now on output `output` is copied. Its memory stays reserved.
void copyFromNowOn(EntryCode& code, size_t output);

}  // namespace gravure
