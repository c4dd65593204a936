#pragma once
// What Python passes as text: devices, options, names of fault points.

#include "passes/pass.h"
#include "runtime/runtime.h"

#include <ATen/core/Dict.h>

#include <memory>
#include <string>

namespace gravure {

struct LoadOptions {
  PassOptions passes;
  RuntimeOptions runtime;
  bool requireNodes = false;  // that none is kept out of graphs
  bool poison = true;
  bool times = false;  // runs are timed: what each call takes
  int64_t shadow = 0;  // each such run is compared with the uncaptured path; 0: none
};

/// TORCH_CHECK names an option that there is not, or a value that it does not take.
LoadOptions parseLoadOptions(const c10::Dict<std::string, std::string>& options);
/// "host", "cuda", "cuda:N". TORCH_CHECK for another word, or if there is no such device.
std::unique_ptr<Device> makeDevice(const std::string& name, bool poison);
FaultPoint parseFaultPoint(const std::string& name);

}  // namespace gravure
