#pragma once
// What the runtime itself costs on the host device: a host node over its boxed dispatch, the boundary
// of a partition, the recomputation that stands for its graph apart, and a step over its launches.

#include <cstdint>

namespace gravure::tool {

struct RuntimeCosts {
  double boxedUs = 0;         // one operator, called boxed in a loop
  double hostNodeUs = 0;      // what a host node costs more than that
  double replayedCallUs = 0;  // one call of a partition, computed anew by the host device
  double boundaryUs = 0;      // what a replayed partition costs over its calls
  // Where launches do nothing, and so take no time.
  double launchedStepUs = 0;   // a step of one partition of one call
  double launchedNodesUs = 0;  // a step of one partition of `count` calls
  double partitionUs = 0;      // one partition more, the host node before it apart
  double markUs = 0;           // a mark for profilers, while nobody watches
};

/// Measures with programs of `count` host nodes or partitions; the least of `repetitions`.
RuntimeCosts measureRuntime(int64_t count, int64_t repetitions);

}  // namespace gravure::tool
