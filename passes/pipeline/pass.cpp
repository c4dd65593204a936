#include "passes/pass.h"

#include "passes/accumulate_gradients.h"
#include "passes/analysis/sharing.h"
#include "passes/await_host_copies.h"
#include "passes/batch_pointwise/batch_pointwise.h"
#include "passes/bind_rng_states.h"
#include "passes/classify_capturability.h"
#include "passes/emit_runtime_calls.h"
#include "passes/group_collectives.h"
#include "passes/infer_sizes.h"
#include "passes/join_gradients.h"
#include "passes/merge_host_reads.h"
#include "passes/partition_graph/partition_graph.h"
#include "passes/pipeline/pass_options.h"
#include "passes/place_products.h"
#include "passes/plan_memory.h"
#include "passes/tag_static_inputs.h"

namespace gravure {
const std::vector<Pass>& allPasses() {
  using enum ProgramFact;
  static const std::vector<Pass> passes{
      {.name = "await-host-copies",
       .summary = "wait for copies to the CPU that the program itself uses",
       .run = awaitHostCopies,
       .makes = {AwaitedCopies},
       .keeps = {OperandTags, RngStates, MemoryPlan}},
      {.name = "accumulate-gradients",
       .summary = "on request, add gradients to the caller's buffers",
       .run = accumulateGradients,
       .verify = verifyAccumulateGradients,
       .keeps = {AwaitedCopies, RngStates},
       .options = accumulateGradientsOptions()},
      {.name = "infer-sizes",
       .summary = "close sizes that follow from others",
       .run = inferSizes,
       .changes = PassChanges::Calls,
       .keeps = {AwaitedCopies, RngStates}},
      {.name = "join-gradients",
       .summary = "put the gradients of a tensor's parts together at once",
       .run = joinGradients,
       .changes = PassChanges::Calls,
       .keeps = {AwaitedCopies, RngStates}},
      {.name = "batch-pointwise",
       .summary = "work on a whole at once where it was worked on in pieces",
       .run = batchPointwise,
       .changes = PassChanges::Calls,
       .needs = {AwaitedCopies},
       .keeps = {AwaitedCopies, RngStates},
       .options = pieceOptions()},
      {.name = "place-products",
       .summary = "write products where a cat would put them",
       .run = placeProducts,
       .changes = PassChanges::Calls,
       .keeps = {AwaitedCopies, RngStates},
       .options = pieceOptions()},
      {.name = "classify-capturability",
       .summary = "say which nodes must run outside a graph, and why",
       .run = classifyCapturability,
       .verify = verifyClassifyCapturability,
       .changes = PassChanges::Marks,
       .makes = {HostReasons},
       .keeps = {AwaitedCopies, OperandTags, RngStates, MemoryPlan},
       .options = classifyCapturabilityOptions()},
      {.name = "group-collectives",
       .summary = "capture a collective, its waits and its buffers together or not at all",
       .run = groupCollectives,
       .verify = verifyGroupCollectives,
       .changes = PassChanges::Marks,
       .needs = {HostReasons},
       .makes = {Fates},
       .keeps = {AwaitedCopies, HostReasons, OperandTags, RngStates, MemoryPlan}},
      {.name = "merge-host-reads",
       .summary = "read all elements of a small tensor in one copy and one wait",
       .run = mergeHostReads,
       .verify = verifyMergeHostReads,
       .needs = {AwaitedCopies},  // a read that goes was a wait
       .keeps = {AwaitedCopies, HostReasons, Fates, RngStates}},
      {.name = "partition-graph",
       .summary = "gather capturable nodes in as few partitions as legal order allows",
       .run = partitionGraph,
       .verify = verifyPartitionGraph,
       .needs = {AwaitedCopies, HostReasons, Fates},
       .makes = {Partitions},
       .keeps = {AwaitedCopies},
       .options = partitionGraphOptions()},
      {.name = "tag-static-inputs",
       .summary = "say how each operand of a partition keeps its address, and why",
       .run = tagStaticInputs,
       .verify = verifyTagStaticInputs,
       .changes = PassChanges::Marks,
       .makes = {OperandTags},
       .keeps = {AwaitedCopies, HostReasons, Fates, Partitions, RngStates}},
      {.name = "bind-rng-states",
       .summary = "give random nodes the RNG state they draw from as an operand",
       .run = bindRngStates,
       .verify = verifyBindRngStates,
       .needs = {OperandTags},
       .makes = {RngStates},
       .keeps = {AwaitedCopies, Partitions, OperandTags}},
      {.name = "plan-memory",
       .summary = "place every value of known size in one arena",
       .run = planMemory,
       .verify = verifyPlanMemory,
       .changes = PassChanges::Marks,
       .needs = {OperandTags},
       .makes = {MemoryPlan},
       .keeps = FactSet::all(),
       .options = planMemoryOptions()},
      {.name = "emit-runtime-calls",
       .summary = "turn partitions into launches, with copies in and results moved out",
       .run = emitRuntimeCalls,
       .verify = verifyEmitRuntimeCalls,
       .needs = {Partitions, OperandTags, RngStates},
       .keeps = {AwaitedCopies, RngStates, MemoryPlan},
       .options = planMemoryOptions()},  // of the plan that the program has
  };
  return passes;
}

std::vector<std::string> passesThatKeepCalls() {
  std::vector<std::string> names;
  for (const Pass& pass : allPasses()) {
    if (pass.changes != PassChanges::Calls) names.emplace_back(pass.name);
  }
  return names;
}

const Pass* findPass(std::string_view name) {
  for (const Pass& pass : allPasses()) {
    if (name == pass.name) return &pass;
  }
  return nullptr;
}

}  // namespace gravure
