#pragma once
// Arena memory of the host device: ranges of one reservation of addresses, so that a pointer tells
// whether it is the arena's, and whose, in two instructions.

#include "runtime/device.h"

#include <c10/core/Allocator.h>

namespace gravure {

/// Memory that stays mapped, at its address, until the Slab and every DataPtr into it are gone.
/// Throws c10::Error if the machine has no memory for it.
std::shared_ptr<Slab> makeHostSlab(int64_t bytes);

/// True if `address` lies in the reservation of host slabs.
bool inHostArena(const void* address);
/// Keeps the slab that holds `address` alive until releaseHostArena(address).
void retainHostArena(const void* address);
void releaseHostArena(const void* address);

/// Slabs whose memory is mapped; for tests that look for lost memory.
int64_t liveHostSlabs();

}  // namespace gravure
