#pragma once
// Names for values that a pass makes. Anonymous values have none, and what follows from one stays anonymous:
// their debugName() is a number, which setDebugName refuses.

#include "ir/core/program.h"

#include <string>

namespace gravure {

/// `wished`, or `wished` with the first number from 2 on that no value of the graph has:
/// setDebugName takes a name away from its older owner, so new names must be new.
std::string freshName(const Graph& graph, const std::string& wished);

/// Names `value` after `origin`, with `ending` behind it; leaves it anonymous if `origin` is.
void nameAfter(Value* value, const Value* origin, const std::string& ending);
/// Gives `value` the name of `old`, which becomes anonymous; does nothing if it is so already.
void takeName(Value* value, Value* old);

}  // namespace gravure
