#pragma once

#include "passes/report/plan_report.h"

namespace gravure::tool {

/// The report for reading: tables, and with `map` the arena over time.
void printPlan(const PlanReport& report, bool map, llvm::raw_ostream& os);

}  // namespace gravure::tool
