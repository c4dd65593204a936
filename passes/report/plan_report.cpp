#include "passes/report/plan_report.h"

#include "ir/core/cudagraph_ops.h"
#include "ir/facts/op_facts.h"
#include "passes/partition_graph/partition_plan.h"
#include "passes/plan_memory.h"

#include <llvm/ADT/DenseMap.h>

namespace gravure {
namespace {

int64_t countCalls(const Block* block) {
  int64_t calls = 0;
  for (const Node* node : block->nodes()) {
    if (node->blocks().empty()) ++calls;
    for (const Block* inner : node->blocks()) calls += countCalls(inner);
  }
  return calls;
}

HostRow hostRow(const Entry& entry, const PlannedRun& run, int64_t after,
                const llvm::DenseMap<const Node*, HostReason>& kept) {
  HostRow row{entry.name, after, static_cast<int64_t>(run.nodes.size()), {}};
  for (const Node* node : run.nodes) {
    auto reason = hostReasonOf(node);
    if (auto found = kept.find(node); !reason && found != kept.end()) reason = found->second;
    ++row.reasons[reason ? reasonName(*reason) : "numbers"];
  }
  return row;
}

void notePartitioning(const Program& program, const PassOptions& options, PlanReport& report) {
  for (const Entry& entry : program.entries) {
    const PartitionPlan plan = planPartitions(entry, options);
    EntryRow row{entry.name,
                 countCalls(entry.graph->block()),
                 plan.order == PartitionOrder::Levels,
                 plan.levelsRefused,
                 plan.levelPartitions,
                 plan.programOrderPartitions,
                 plan.levelPeak,
                 plan.programOrderPeak};
    report.entries.push_back(std::move(row));
    llvm::DenseMap<const Node*, HostReason> kept;
    for (const PlannedHost& host : plan.keptOnHost) kept.try_emplace(host.node, host.reason);
    int64_t after = -1;
    for (const PlannedRun& run : plan.runs) {
      if (run.captured) {
        after = run.index;
      } else {
        report.hostRuns.push_back(hostRow(entry, run, after, kept));
      }
    }
  }
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
      if (node->kind() != cg::stage) continue;
      for (const Value* value : node->outputs()) {
        report.stagedBytes += storageBytes(*value->type()).value_or(0);
      }
    }
  }
}

}  // namespace

PlanReport planProgram(Program& program, PassContext& context, const std::string& file) {
  PlanReport report;
  report.file = file;
  for (const Pass& pass : allPasses()) {
    if (std::string_view(pass.name) == "partition-graph") {
      notePartitioning(program, context.options, report);
    }
    runPasses(program, context, {pass.name});
    if (std::string_view(pass.name) == "plan-memory") {
      report.memory = writtenPlan(program, context.options);
    }
  }
  noteResult(program, report);
  return report;
}

}  // namespace gravure
