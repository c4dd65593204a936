#include "tools/gravure/opt/pass_run.h"

#include "ir/check/verify.h"
#include "tools/gravure/command/command.h"

namespace gravure::tool {
namespace {

/// Of the last node of a program's first entry that has two of one type.
void exchangeOperands(Program& program) {
  for (Node* node : program.entries.front().graph->nodes().reverse()) {
    if (node->inputs().size() < 2 || !(*node->input(0)->type() == *node->input(1)->type()))
      continue;
    Value* first = node->input(0);
    node->replaceInput(0, node->input(1));
    node->replaceInput(1, first);
    return;
  }
}

}  // namespace

std::optional<PassFailure> runChecked(const PassRun& run, Program& program, PassContext& context,
                                      const SavedInputs* saved, const PassVisits& visits,
                                      std::vector<PassRecord>& records) {
  context.options = run.options;
  if (run.rewriteLimit) context.rewrites.set(*run.rewriteLimit);
  if (run.verify) verifyProgram(program);
  std::optional<Proof> proof;
  if (run.proof) proof.emplace(program, *run.proof, saved);
  PipelineOptions options;
  options.verifyEach = options.verifyFacts = run.verify;
  options.records = &records;
  options.beforePass = visits.before;
  options.afterPass = [&](const Pass& pass, const Program& changed) {
    if (run.corrupt && records.size() == run.pipeline.size()) exchangeOperands(program);
    const std::string why = proof ? proof->differenceOf(changed) : "";
    TORCH_CHECK(why.empty(), "--check-bits: ", pass.name,
                " changed what the program does (before, then after): ", why);
    if (visits.after) visits.after(pass, changed);
  };
  try {
    runPipeline(program, context, run.pipeline, options);
  } catch (const c10::Error& error) {
    if (records.empty()) throw;
    return PassFailure{records.size() - 1, records.back().phase, messageOf(error),
                       context.rewrites.asked(), context.rewrites.last()};
  }
  return std::nullopt;
}

std::optional<PassFailure> failureOf(const PassRun& run, const Program& program) {
  Program copy = program.clone();
  PassContext context;
  std::vector<PassRecord> records;
  return runChecked(run, copy, context, nullptr, {}, records);
}

}  // namespace gravure::tool
