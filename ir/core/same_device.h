#pragma once

#include <c10/core/Device.h>

namespace gravure {

/// True if two names of devices may mean one: `cuda` is any of `cuda:0`, `cuda:1`; there is one CPU.
inline bool sameDevice(c10::Device a, c10::Device b) {
  if (a.type() != b.type()) return false;
  return a.is_cpu() || !a.has_index() || !b.has_index() || a.index() == b.index();
}

}  // namespace gravure
