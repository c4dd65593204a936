#include "passes/report/plan_report.h"

#include <llvm/Support/JSON.h>
#include <llvm/Support/raw_ostream.h>

namespace gravure {

void printPlanJson(const PlanReport& report, llvm::raw_ostream& os) {
  llvm::json::OStream json(os, 2);
  json.object([&] {
    json.attribute("file", report.file);
    json.attributeArray("entries", [&] {
      for (const EntryRow& row : report.entries) {
        json.object([&] {
          json.attribute("name", row.name);
          json.attribute("calls", row.calls);
          json.attribute("order", row.levels ? "levels" : "program");
          json.attribute("levels_refused", row.levelsRefused);
          json.attribute("level_partitions", row.levelPartitions);
          json.attribute("program_order_partitions", row.programOrderPartitions);
          json.attribute("level_peak_bytes", row.levelPeak);
          json.attribute("program_order_peak_bytes", row.programOrderPeak);
        });
      }
    });
    json.attributeArray("partitions", [&] {
      for (const PartitionRow& row : report.partitions) {
        json.object([&] {
          json.attribute("entry", row.entry);
          json.attribute("index", row.index);
          json.attribute("calls", row.calls);
          json.attribute("inputs", row.inputs);
          json.attribute("outputs", row.outputs);
          json.attribute("static", row.staticOperands);
          json.attribute("staged", row.stagedOperands);
          json.attribute("staged_bytes", row.stagedBytes);
          json.attribute("rng", row.rngOperands);
          json.attribute("guarded", row.guarded);
        });
      }
    });
    json.attributeArray("host_sections", [&] {
      for (const HostRow& row : report.hostSections) {
        json.object([&] {
          json.attribute("entry", row.entry);
          json.attribute("after_partition", row.after);
          json.attribute("nodes", row.nodes);
          json.attributeObject("reasons", [&] {
            for (const auto& [name, count] : row.reasons) json.attribute(name, count);
          });
        });
      }
    });
    json.attribute("staged_bytes", report.stagedBytes);
    json.attribute("live_bytes", report.memory.load);
    json.attribute("arena_bytes", report.memory.bytes);
    json.attribute("ratio", report.memory.ratio());
    json.attribute("buffers", static_cast<int64_t>(report.memory.buffers.size()));
  });
  os << '\n';
}

}  // namespace gravure
