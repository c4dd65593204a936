#pragma once
// What gravure run says when it is done.

#include "ir/core/remark.h"
#include "runtime/runtime.h"

#include <map>
#include <string>
#include <vector>

namespace gravure::tool {

struct RunReport {
  int64_t steps = 0;
  bool verified = false;
  std::string difference;            // where the two sides first differed; "" if they agree
  std::vector<double> milliseconds;  // one a step, without --verify
  RuntimeStats stats;
  std::map<std::string, int64_t> partitions;  // how many are in each state, by its name
  std::map<std::string, int64_t> missed;      // how many remarks of each name
};

void fillReport(RunReport& report, Runtime& runtime, const Remarks& remarks);
void printReport(const RunReport& report, llvm::raw_ostream& os);
void printReportJson(const RunReport& report, llvm::raw_ostream& os);

}  // namespace gravure::tool
