#pragma once
// Puts what may be held between two steps at the bottom of an arena, where it takes few pages.

#include "ir/memory/memory_plan.h"

#include <vector>

namespace gravure {

/// Places the buffers anew, those of `low` (by buffer) first, if they come to lie lower so and the plan
/// grows by 0.1 % at most. Deterministic; a fixed number of comparisons a buffer.
void placeLow(MemoryPlan& plan, const std::vector<bool>& low);

}  // namespace gravure
