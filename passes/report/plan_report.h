#pragma once
// How a program will be cut and where its memory lies, before anything runs: for gravure plan and
// gravure.explain.

#include "ir/memory/memory_plan.h"
#include "passes/pass.h"

#include <map>
#include <string>
#include <vector>

namespace llvm {
class raw_ostream;
}

namespace gravure {

/// One partition, with how its operands keep their addresses.
struct PartitionRow {
  std::string entry;
  int64_t index = 0;
  int64_t calls = 0;  // operator calls in it
  int64_t inputs = 0;
  int64_t outputs = 0;
  int64_t staticOperands = 0;
  int64_t stagedOperands = 0;
  int64_t stagedBytes = 0;  // of those whose size the program says
  int64_t rngOperands = 0;
  int64_t guarded = 0;
};

/// One section of nodes between partitions.
struct HostRow {
  std::string entry;
  int64_t after = -1;  // index of the partition before it, -1 at the beginning
  int64_t nodes = 0;
  std::map<std::string, int64_t> reasons;  // how many nodes for each; "numbers" needs no device
};

/// What partition-graph decided for one entry.
struct EntryRow {
  std::string name;
  int64_t calls = 0;
  bool levels = true;  // the order taken
  std::string levelsRefused;
  int64_t levelPartitions = 0, programOrderPartitions = 0;
  int64_t levelPeak = 0, programOrderPeak = 0;  // bytes
};

struct PlanReport {
  std::string file;
  std::vector<EntryRow> entries;
  std::vector<PartitionRow> partitions;
  std::vector<HostRow> hostSections;
  int64_t stagedBytes = 0;  // copied in by a step
  MemoryPlan memory;
};

/// Runs all passes on `program` and notes what they decide. `file` is what the report calls it.
PlanReport reportPlan(Program& program, PassContext& context, const std::string& file);
/// One JSON object with the fields of PlanReport.
void printPlanJson(const PlanReport& report, llvm::raw_ostream& os);

}  // namespace gravure
