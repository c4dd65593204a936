#pragma once
// Arena memory of the host device: one memory file, whose pages are mapped at the addresses of several
// arenas, as a GPU's pages are.

#include "runtime/arena_pages.h"

namespace gravure {

/// The arenas of this process. Never destroyed: tensors of static storage duration may outlive
/// everything. What a child process made by fork() writes there stays its own.
ArenaPages& hostPages();

/// True if `address` lies in an arena of the host device.
inline bool inHostArena(const void* address) { return hostPages().contains(address); }

/// Arenas that are alive; for tests that look for lost memory.
inline int64_t liveHostSlabs() { return hostPages().arenas(); }

}  // namespace gravure
