#pragma once
// What the runtime itself costs on the host device: a host node over its boxed dispatch, and the
// boundary of a partition, the recomputation that stands for its graph apart.

#include <cstdint>

namespace gravure::tool {

struct RuntimeCosts {
  double boxedUs = 0;         // one operator, called boxed in a loop
  double hostNodeUs = 0;      // what a host node costs more than that
  double replayedCallUs = 0;  // one call of a partition, computed anew by the host device
  double boundaryUs = 0;      // what a replayed partition costs over its calls
};

/// Measures with programs of `count` host nodes or partitions; the least of `repetitions`.
RuntimeCosts measureRuntime(int64_t count, int64_t repetitions);

}  // namespace gravure::tool
