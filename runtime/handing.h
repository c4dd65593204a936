#pragma once
// How each result of a program is handed to its caller (design law 5).

#include "ir/timeline.h"
#include "runtime/instruction.h"
#include "runtime/runtime.h"

#include <vector>

namespace gravure {

/// Sets `handing` of every entry's outputs and of its Own instructions. A result is Lent or Static
/// only where the step allocates it with a shape known in advance, and Lent only if no other result
/// shares its memory.
void chooseHanding(const Program& program, const Timeline& timeline, ResultPolicy policy,
                   std::vector<EntryCode>& codes);

/// Storages, by Timeline number, that Lent and Static results lie in: from their birth until their entry
/// runs again, no other buffer may overlap them.
std::vector<bool> reservedStorages(const Timeline& timeline, std::vector<EntryCode>& codes);

/// From now on output `output` is copied. Its memory stays reserved.
void copyFromNowOn(EntryCode& code, size_t output);

}  // namespace gravure
