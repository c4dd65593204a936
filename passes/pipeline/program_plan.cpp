#include "passes/pipeline/program_plan.h"

#include "passes/pipeline/pipeline.h"
#include "passes/plan_memory.h"

#include <llvm/Support/raw_ostream.h>

namespace gravure {
namespace {

/// Those that only mark nodes, as far as partition-graph reads their marks.
Pipeline markingPasses() {
  Pipeline marking;
  for (const Pass& pass : allPasses()) {
    if (pass.makes.has(ProgramFact::Partitions)) break;
    if (pass.changes == PassChanges::Marks) marking.push_back({&pass});
  }
  return marking;
}

}  // namespace

const std::vector<PartitionPlan>& planProgram(Program& program, PassContext& context,
                                              PlannedCalls calls, MemoryPlan* memory) {
  if (calls == PlannedCalls::Final) {
    PipelineOptions options;
    options.afterPass = [&](const Pass& pass, const Program& planned) {
      const bool made = pass.makes.has(ProgramFact::MemoryPlan);
      if (memory && made) *memory = writtenPlan(planned, context.options, context.analyses);
    };
    runPipeline(program, context, wholePipeline(), options);
  } else {
    runPipeline(program, context, markingPasses());
    std::vector<PartitionPlan> plans;
    for (const Entry& entry : program.entries)
      plans.push_back(planPartitions(entry, context.options, context.analyses));
    context.partitionPlans = std::make_shared<const std::vector<PartitionPlan>>(std::move(plans));
  }
  return *context.partitionPlans;
}

std::string planText(const Program& program, const std::vector<PartitionPlan>& plans) {
  std::string text;
  llvm::raw_string_ostream os(text);
  for (size_t e = 0; e < plans.size(); ++e) {
    os << "entry " << program.entries[e].name << ":\n";
    plans[e].print(os);
  }
  return text;
}

}  // namespace gravure
