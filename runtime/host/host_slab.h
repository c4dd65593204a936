#pragma once
// Arena memory of the host device: one memory file, whose pages are mapped at the addresses of several
// arenas, as a GPU's pages are.

#include "runtime/arena/arena_blocks.h"
#include "runtime/arena/arena_pages.h"

namespace gravure {

/// The arenas of this process. Never destroyed: tensors of static storage duration may outlive
/// everything. What a child process made by fork() writes there stays its own.
ArenaPages& hostPages();

/// Arenas without pages. Never destroyed.
ArenaBlocks& hostBlocks();

/// What the arena that `address` lies in belongs to, nullptr if it lies in none.
inline ArenaMemory* hostArenasAt(const void* address) {
  if (hostPages().contains(address)) return &hostPages();
  return hostBlocks().contains(address) ? &hostBlocks() : nullptr;
}

/// True if `address` lies in an arena of the host device.
inline bool inHostArena(const void* address) { return hostArenasAt(address) != nullptr; }

/// Arenas that are alive; for tests that look for lost memory.
inline int64_t liveHostSlabs() { return hostPages().arenas() + hostBlocks().arenas(); }

/// From now on the host device has `bytes` for the pages of its arenas, as a GPU has.
void limitHostMemory(int64_t bytes);

}  // namespace gravure
