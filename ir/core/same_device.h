#pragma once

#include <c10/core/Device.h>

namespace gravure {

/// True if both may be one device: `cuda` may be `cuda:0` or `cuda:1`, and there is one CPU.
inline bool sameDevice(c10::Device a, c10::Device b) {
  if (a.type() != b.type()) return false;
  return a.is_cpu() || !a.has_index() || !b.has_index() || a.index() == b.index();
}

}  // namespace gravure
