#pragma once
// How each result of a program is handed to its caller (law 5).

#include "ir/memory/timeline.h"
#include "runtime/layout/arena_layout.h"
#include "runtime/program/instruction.h"
#include "runtime/runtime.h"

#include <llvm/ADT/STLFunctionalExtras.h>

#include <vector>

namespace gravure {

/// From this on, a second copy of an output costs more than what people get from a small one that is a
/// copy in any case: it is lent where the warm-up saw its holder drop it before the next step.
constexpr int64_t kLentFrom = int64_t{1} << 20;

/// Sets `ownership` of every entry's outputs and of its Own instructions. A result is Lent or Static
/// only where the step allocates it with a shape known in advance, and Lent only if no other result
/// shares its memory; of outputs, large ones alone are wished to be.
void chooseOwnership(const Program& program, const Timeline& timeline, ResultPolicy policy,
                     std::vector<EntryCode>& codes);

/// By Timeline storage, those that Lent and Static results lie in: no other buffer may overlap
/// them until their entry runs again, or, of Lent ones with `droppedInTime(entry, output)`, until the
/// next step begins, or, with `droppedInEntry` too, until a later entry runs.
std::vector<Exclusive> reservedStorages(const Timeline& timeline, std::vector<EntryCode>& codes,
                                        llvm::function_ref<bool(size_t, size_t)> droppedInTime,
                                        llvm::function_ref<bool(size_t, size_t)> droppedInEntry);

/// From now on output `output` is copied. Its memory stays reserved.
void copyFromNowOn(EntryCode& code, size_t output);

}  // namespace gravure
