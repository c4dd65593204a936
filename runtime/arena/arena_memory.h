#pragma once
// What a device's allocator asks of the arenas by address.

#include "runtime/device/device.h"

#include <c10/core/Stream.h>

namespace gravure {

/// Arenas of one device. All may be called from any thread at any time, for an address in an arena.
class ArenaMemory {
 public:
  virtual ~ArenaMemory() = default;
  /// Keeps the arena that holds `address` until release(address).
  virtual void retain(const void* address) = 0;
  virtual void release(const void* address) = 0;
  /// First address and bytes of the arena that holds `address`.
  virtual Extent arenaAt(const void* address) const = 0;
  /// `stream` reads a tensor at `address`, which the caller holds: no later step uses the arena before
  /// what the stream holds by then is done.
  virtual void readOn(const void* address, c10::Stream stream) = 0;
};

}  // namespace gravure
