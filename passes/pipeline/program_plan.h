#pragma once
// The one way to plan a program: which nodes go into which partition, with all that is decided before.

#include "ir/memory/memory_plan.h"
#include "passes/partition_graph/partition_plan.h"

#include <string>
#include <vector>

namespace gravure {

/// What becomes of the program that is planned.
enum class PlannedCalls : uint8_t {
  Final,    // all passes run: it is ready for the runtime
  AsGiven,  // it keeps its nodes and their order, and passes mark them alone: for who tells nodes by
            // their positions in a text
};

/// Runs the passes on `program` and returns what they decide, one plan an entry; the plans are in
/// `context`, too, and good as long as it and the program's nodes are. c10::Error as runPasses.
/// `memory`, if not null: is set to the memory plan, in the positions that the program has when it is made;
/// not with PlannedCalls::AsGiven, which plans none.
const std::vector<PartitionPlan>& planProgram(Program& program, PassContext& context,
                                              PlannedCalls calls = PlannedCalls::Final,
                                              MemoryPlan* memory = nullptr);

/// The plans as text, each under the name of its entry.
std::string planText(const Program& program, const std::vector<PartitionPlan>& plans);

}  // namespace gravure
