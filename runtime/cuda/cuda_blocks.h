#pragma once
// Arenas of a GPU that cannot map pages: a block of PyTorch's allocator each.

#include "runtime/arena/arena_blocks.h"

#include <c10/core/Device.h>

namespace gravure {

/// Those of one GPU. Never destroyed, as cudaPages().
ArenaBlocks& cudaBlocks(c10::DeviceIndex device);

/// The arenas that `address` lies among, on pages or in blocks; nullptr if it lies in none.
ArenaMemory* cudaArenasAt(const void* address);

}  // namespace gravure
