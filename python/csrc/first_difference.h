#pragma once
// Which value of an entry a captured step computes otherwise than an uncaptured one.

#include "ir/core/program.h"
#include "passes/pass.h"

#include <ATen/core/ivalue.h>

#include <optional>
#include <string>
#include <vector>

namespace gravure {

/// The first such value, and how it differs.
struct DifferentValue {
  std::string value;         // "%y = ns::op at model.py:12 in blocks.0"
  std::string operatorName;  // "ns::op"
  std::string difference;    // firstDifference: captured, then uncaptured
  bool repeats = true;       // false: two uncaptured runs differ there, too
};

/// Runs the entry `name` of `program`, which no pass has seen, with many of its values as results:
/// captured with other inputs and replayed with `inputs`, beside the uncaptured path. `inputs` are
/// copies that may be written. nullopt where nothing differs then. `device`: "host", "cuda:0".
/// Throws what running it throws.
std::optional<DifferentValue> findDifferentValue(const Program& program, const std::string& name,
                                                 const std::vector<c10::IValue>& inputs,
                                                 const std::string& device,
                                                 const PassOptions& options, bool poison);

/// True for a result that may be bytes which no kernel wrote: the seed that attention without dropout
/// returns.
bool maybeUnwritten(const Value* value);

/// "ns::op at model.py:12 in blocks.0", with the value's name first.
std::string describeWithModule(const Node* node);

}  // namespace gravure
