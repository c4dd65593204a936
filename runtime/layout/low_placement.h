#pragma once
// Puts what may be held between two steps at the bottom of an arena, where it takes few pages.

#include "ir/memory/memory_plan.h"

#include <vector>

namespace gravure {

/// Places the buffers anew, those of `saved` first and those of `results` behind them or among the others
/// (both by buffer), if they come to lie lower so, and the plan grows by a twentieth of that and 0.5 % at
/// most. How low they lie is the sum of where the highest saved one ends and where the highest of all these
/// does. The two apart: results come as saved values die, so they may fill the arena to the top whatever is
/// placed first; saved values that are spread so far are held on as many pages. Deterministic; a fixed
/// number of comparisons a buffer.
void placeLow(MemoryPlan& plan, const std::vector<bool>& saved, const std::vector<bool>& results);

}  // namespace gravure
