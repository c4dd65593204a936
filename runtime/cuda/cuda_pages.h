#pragma once
// The arenas' memory on a GPU: addresses and pages of the driver's virtual memory management.

#include "runtime/arena/arena_pages.h"

#include <c10/core/Device.h>

#include <set>
#include <string>

namespace gravure {

/// The arenas of one GPU. Never destroyed: tensors may be freed while the process ends. Several
/// addresses of one page are ordered as the work on them is: the end of a kernel, or an event between
/// streams (CUDA programming guide, "virtual aliasing support").
ArenaPages& cudaPages(c10::DeviceIndex device);

/// Why there are none: the GPU cannot map pages, or the process has no addresses left; "" if there are.
std::string whyNoArenaPages(c10::DeviceIndex device);

/// The same, or nullptr if there never was one.
ArenaPages* knownCudaPages(c10::DeviceIndex device);

/// The arenas that `address` lies among, or nullptr.
ArenaPages* cudaPagesAt(const void* address);

/// Bytes that `device` has now, within the share of it that PyTorch may take.
int64_t availableMemory(c10::DeviceIndex device);

/// Gives back what of `device` ended warm-ups and arenas at rest take. Waits for the work on it. The
/// bytes.
int64_t releaseAtRest(c10::DeviceIndex device);

/// The same, but for arenas at rest: of programs that are gone alone.
void releaseEnded(c10::DeviceIndex device);

/// Kernels on `device` may read and write the arenas of `owner`, and what programs warm up in there,
/// from now on.
void openArenasTo(c10::DeviceIndex owner, c10::DeviceIndex device);
/// The devices that those of `owner` were opened to.
std::set<c10::DeviceIndex> openedTo(c10::DeviceIndex owner);

}  // namespace gravure
