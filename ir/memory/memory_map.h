#pragma once
// A memory plan as a picture of characters.

#include "ir/memory/memory_plan.h"

namespace gravure {

/// Time runs right, offsets up; `#` where bytes are in use. At most columns × rows characters.
void printMemoryMap(const MemoryPlan& plan, llvm::raw_ostream& os, int columns = 72, int rows = 16);

}  // namespace gravure
