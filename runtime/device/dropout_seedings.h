#pragma once
// How often cuDNN's dropout was seeded.
//
// Recurrent modules with dropout draw from a state of cuDNN's that PyTorch makes for each GPU, in the first
// one that needs it, and again in the first one behind manual_seed() or a random state that was put back.
// Each new state lies elsewhere, so a capture holds for one seeding (takeDropoutRestart() in device.h says
// whether the next module begins another one).

#include <cstdint>

namespace gravure {

/// Of this process, on all GPUs together; from when this library was loaded. Thread-safe.
int64_t dropoutSeedings();

}  // namespace gravure
