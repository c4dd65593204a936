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
#include "passes/place_products.h"
#include "passes/plan_memory.h"
#include "passes/tag_static_inputs.h"

#include <c10/util/Exception.h>
#include <llvm/ADT/StringRef.h>

#include <optional>
#include <utility>

namespace gravure {
namespace {

const Pass& nearestPass(llvm::StringRef name) {
  const Pass* nearest = &allPasses().front();
  unsigned least = ~0u;
  for (const Pass& pass : allPasses()) {
    const unsigned distance = name.edit_distance(pass.name);
    if (distance < least) {
      least = distance;
      nearest = &pass;
    }
  }
  return *nearest;
}

/// `sharing` is what held before the pass, and is what holds now afterwards.
void checkSharing(const Pass& pass, const Program& program, Sharing& sharing) {
  Sharing now(program);
  const std::string broken = now.breaksRule(sharing);
  TORCH_INTERNAL_ASSERT(broken.empty(), pass.name, ": ", broken);
  sharing = std::move(now);
}

}  // namespace

const std::vector<Pass>& allPasses() {
  static const std::vector<Pass> passes{
      {"await-host-copies", "wait for copies to the CPU that the program itself uses",
       awaitHostCopies},
      {"accumulate-gradients", "on request, add gradients to the caller's buffers",
       accumulateGradients, verifyAccumulateGradients},
      {"infer-sizes", "close sizes that follow from others", inferSizes, nullptr, true},
      {"join-gradients", "put the gradients of a tensor's parts together at once", joinGradients,
       nullptr, true},
      {"batch-pointwise", "work on a whole at once where it was worked on in pieces",
       batchPointwise, nullptr, true},
      {"place-products", "write products where a cat would put them", placeProducts, nullptr, true},
      {"classify-capturability", "say which nodes must run outside a graph, and why",
       classifyCapturability, verifyClassifyCapturability},
      {"group-collectives",
       "capture a collective, its waits and its buffers together or not at all", groupCollectives,
       verifyGroupCollectives},
      {"merge-host-reads", "read all elements of a small tensor in one copy and one wait",
       mergeHostReads, verifyMergeHostReads},
      {"partition-graph", "gather capturable nodes in as few partitions as legal order allows",
       partitionGraph, verifyPartitionGraph},
      {"tag-static-inputs", "say how each operand of a partition keeps its address, and why",
       tagStaticInputs, verifyTagStaticInputs},
      {"bind-rng-states", "give random nodes the RNG state they draw from as an operand",
       bindRngStates, verifyBindRngStates},
      {"plan-memory", "place every value of known size in one arena", planMemory, verifyPlanMemory},
      {"emit-runtime-calls", "turn partitions into launches, with copies in and results moved out",
       emitRuntimeCalls, verifyEmitRuntimeCalls},
  };
  return passes;
}

std::vector<std::string> passesThatKeepCalls() {
  std::vector<std::string> names;
  for (const Pass& pass : allPasses()) {
    if (!pass.changesCalls) names.emplace_back(pass.name);
  }
  return names;
}

const Pass* findPass(std::string_view name) {
  for (const Pass& pass : allPasses()) {
    if (name == pass.name) return &pass;
  }
  return nullptr;
}

void runPasses(Program& program, PassContext& context, const std::vector<std::string>& names,
               const PipelineOptions& options) {
  // A wrong name is found before the program is touched.
  std::vector<const Pass*> passes;
  for (const std::string& name : names) {
    const Pass* pass = findPass(name);
    TORCH_CHECK(pass, "there is no pass '", name, "'; did you mean '", nearestPass(name).name,
                "'?");
    passes.push_back(pass);
  }
  if (names.empty()) {
    for (const Pass& pass : allPasses()) passes.push_back(&pass);
  }
  context.verify = options.verifyEach;
  std::optional<Sharing> sharing;
  if (options.verifyEach) sharing.emplace(program);
  for (const Pass* pass : passes) {
    pass->run(program, context);
    if (options.verifyEach) {
      if (pass->verify) pass->verify(program, context);
      checkSharing(*pass, program, *sharing);
    }
    if (options.afterPass) options.afterPass(*pass, program);
  }
}

}  // namespace gravure
