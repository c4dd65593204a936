#include "passes/report/plan_report.h"

#include "ir/core/cudagraph_ops.h"
#include "ir/facts/value_types.h"
#include "passes/pipeline/program_plan.h"
#include "passes/report/step_detail.h"

namespace gravure {
namespace {

int64_t countCalls(const Block* block);

int64_t countCalls(const Node* node) {
  if (node->blocks().empty()) return 1;
  int64_t calls = 0;
  for (const Block* inner : node->blocks()) calls += countCalls(inner);
  return calls;
}

int64_t countCalls(const Block* block) {
  int64_t calls = 0;
  for (const Node* node : block->nodes()) calls += countCalls(node);
  return calls;
}

HostRow hostRow(const Entry& entry, const PlannedSection& section, int64_t after) {
  HostRow row{entry.name, after, static_cast<int64_t>(section.nodes.size()), {}};
  for (const Node* node : section.nodes) {
    const auto reason = hostReasonOf(node);
    ++row.reasons[reason ? reasonName(*reason) : "numbers"];
  }
  return row;
}

void notePartitioning(const Entry& entry, const PartitionPlan& plan, PlanReport& report) {
  EntryRow row{entry.name,
               0,
               plan.order == PartitionOrder::Levels,
               plan.levelsRefused,
               plan.levelPartitions,
               plan.programOrderPartitions,
               plan.levelPeak,
               plan.programOrderPeak};
  int64_t after = -1;
  for (const PlannedSection& section : plan.sections) {
    for (const Node* node : section.nodes) row.calls += countCalls(node);
    if (section.captured) {
      after = section.index;
    } else {
      report.hostSections.push_back(hostRow(entry, section, after));
    }
  }
  report.entries.push_back(std::move(row));
}

PartitionRow partitionRow(const Entry& entry, const Node* node) {
  PartitionRow row;
  row.entry = entry.name;
  row.index = partitionIndex(node);
  row.calls = countCalls(node->blocks().at(0));
  row.inputs = static_cast<int64_t>(node->inputs().size());
  row.outputs = static_cast<int64_t>(node->outputs().size());
  const std::vector<OperandTag> tags = tagsOf(node);
  for (size_t i = 0; i < tags.size(); ++i) {
    switch (tags[i].kind) {
      case OperandKind::Static: ++row.staticOperands; break;
      case OperandKind::RngState: ++row.rngOperands; break;
      case OperandKind::Guarded: ++row.guarded; break;
      case OperandKind::Staged:
        ++row.stagedOperands;
        row.stagedBytes += storageBytes(*node->input(i)->type()).value_or(0);
        break;
    }
  }
  return row;
}

void noteResult(const Program& program, PlanReport& report) {
  for (const Entry& entry : program.entries) {
    for (const Node* node : entry.graph->nodes()) {
      if (isPartition(node)) report.partitions.push_back(partitionRow(entry, node));
    }
    report.stagedBytes += stagedBytes(entry);
  }
}

}  // namespace

PlanReport reportPlan(Program& program, PassContext& context, const std::string& file) {
  PlanReport report;
  report.file = file;
  const std::vector<PartitionPlan>& plans =
      planProgram(program, context, PlannedCalls::Final, &report.memory);
  for (size_t e = 0; e < plans.size(); ++e) notePartitioning(program.entries[e], plans[e], report);
  noteResult(program, report);
  return report;
}

}  // namespace gravure
