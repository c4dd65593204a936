#pragma once
// The CPU allocator of the host device: forwards to the one that was installed, and answers the
// threads that run a program from their session's plan.

#include <c10/core/Allocator.h>

namespace gravure {

/// Makes it PyTorch's CPU allocator, for the life of the process. Idempotent and thread-safe.
/// TORCH_CHECK if another allocator of the highest priority is in the way.
void installHostAllocator();

/// A DataPtr at `address` in a host slab, which it keeps alive.
c10::DataPtr hostArenaPtr(void* address);

}  // namespace gravure
