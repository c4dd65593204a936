#include "tools/gravure/plan/plan_print.h"

#include "ir/memory/memory_map.h"
#include "tools/gravure/command/table.h"
#include "tools/gravure/command/units.h"

#include <llvm/Support/Format.h>
#include <llvm/Support/raw_ostream.h>

namespace gravure::tool {
namespace {

std::string reasonsText(const std::map<std::string, int64_t>& reasons) {
  std::string text;
  for (const auto& [name, count] : reasons) {
    text += (text.empty() ? "" : ", ") + std::to_string(count) + " " + name;
  }
  return text;
}

void printEntries(const PlanReport& report, llvm::raw_ostream& os) {
  for (const EntryRow& row : report.entries) {
    os << "entry " << row.name << ": " << row.calls << " operator calls; by levels "
       << row.levelPartitions << " partitions (planned peak " << bytesText(row.levelPeak)
       << "), in program order " << row.programOrderPartitions << " ("
       << bytesText(row.programOrderPeak)
       << "); taken: " << (row.levels ? "levels" : "program order") << '\n';
    if (!row.levelsRefused.empty()) os << "  levels were refused: " << row.levelsRefused << '\n';
  }
}

}  // namespace

void printPlan(const PlanReport& report, bool map, llvm::raw_ostream& os) {
  os << report.file << '\n';
  printEntries(report, os);
  Table table({"entry", "partition", "calls", "inputs", "outputs", "static", "staged",
               "staged bytes", "rng", "guarded"});
  for (const PartitionRow& row : report.partitions) {
    table.add({row.entry, row.index, row.calls, row.inputs, row.outputs, row.staticOperands,
               row.stagedOperands, row.stagedBytes, row.rngOperands, row.guarded});
  }
  os << '\n';
  table.print(os);
  Table host({"entry", "host section", "nodes", "reasons"});
  for (const HostRow& row : report.hostSections) {
    const std::string position =
        row.after < 0 ? "at the beginning" : "after " + std::to_string(row.after);
    host.add({row.entry, position, row.nodes, reasonsText(row.reasons)});
  }
  if (!report.hostSections.empty()) {
    os << '\n';
    host.print(os);
  }
  const MemoryPlan& memory = report.memory;
  os << "\npartitions " << report.partitions.size() << ", host sections "
     << report.hostSections.size() << ", staged a step " << report.stagedBytes << " bytes\n";
  os << "live bytes " << memory.load << ", arena " << memory.bytes
     << llvm::format(", ratio %.3f, ", memory.ratio()) << memory.buffers.size() << " buffers\n";
  if (map && !memory.buffers.empty()) {
    os << "\narena over time (positions to the right, offsets upwards)\n";
    printMemoryMap(memory, os);
  }
}

}  // namespace gravure::tool
