#include "passes/program_facts.h"

#include "ir/core/cudagraph_ops.h"
#include "ir/facts/op_facts.h"
#include "passes/await_host_copies.h"
#include "passes/bind_rng_states.h"
#include "passes/classify_capturability.h"
#include "passes/group_collectives.h"
#include "passes/plan_memory.h"
#include "passes/tag_static_inputs.h"

#include <c10/util/Exception.h>

namespace gravure {
namespace {

/// A program all of whose nodes run on the host has none.
void checkPartitions(const Program& program, const PassContext&) {
  const Node* free = nullptr;
  for (const Entry& entry : program.entries) {
    for (const Node* node : entry.graph->nodes()) {
      if (isPartition(node)) return;
      if (!free && !hostReasonOf(node) && !factsOf(node).numbersOnly) free = node;
    }
  }
  TORCH_CHECK(!free, describe(free), " has no host reason, and no node stands in a partition");
}

struct Definition {
  const char* name;
  void (*check)(const Program&, const PassContext&);
};

/// In the order of the enumeration.
constexpr Definition kDefinitions[kProgramFacts] = {
    {"awaited host copies", checkAwaitedCopies},
    {"host reasons", verifyClassifyCapturability},
    {"fates of collectives", verifyGroupCollectives},
    {"partitions", checkPartitions},
    {"operand tags", verifyTagStaticInputs},
    {"RNG states", verifyBindRngStates},
    {"a memory plan", verifyPlanMemory},
};

}  // namespace

const char* factName(ProgramFact fact) { return kDefinitions[static_cast<uint8_t>(fact)].name; }

void checkFact(ProgramFact fact, const Program& program, const PassContext& context) {
  kDefinitions[static_cast<uint8_t>(fact)].check(program, context);
}

}  // namespace gravure
