#pragma once
// The arenas' memory on a GPU: addresses and pages of the driver's virtual memory management.

#include "runtime/arena_pages.h"

#include <c10/core/Device.h>

namespace gravure {

/// The arenas of one GPU. Never destroyed: tensors may be freed while the process ends. Several
/// addresses of one page are ordered as the work on them is: the end of a kernel, or an event between
/// streams (CUDA programming guide, "virtual aliasing support").
ArenaPages& cudaPages(c10::DeviceIndex device);

/// The same, or nullptr if there never was one.
ArenaPages* knownCudaPages(c10::DeviceIndex device);

/// The arenas that `address` lies among, or nullptr.
ArenaPages* cudaPagesAt(const void* address);

/// Why `device` cannot map pages; "" if it can. GRAVURE_NO_VIRTUAL_MEMORY=1 is a reason.
std::string whyNoPages(c10::DeviceIndex device);

/// Bytes that `device` has now, within the share of it that PyTorch may take.
int64_t availableMemory(c10::DeviceIndex device);

/// Kernels on `device` may read and write the arenas of `owner`, from now on.
void openArenasTo(c10::DeviceIndex owner, c10::DeviceIndex device);

}  // namespace gravure
