#pragma once
// Names for values that a pass makes.

#include "ir/core/program.h"

#include <string>

namespace gravure {

/// `wished`, or `wished` with the first number from 2 on that no value of the graph has:
/// setDebugName takes a name away from its older owner, so new names must be new.
std::string freshName(const Graph& graph, const std::string& wished);

}  // namespace gravure
