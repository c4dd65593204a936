#pragma once
// plan-memory: an offset in one arena for every value of known size, over all entries together.
//
// Terms. Arena, LOAD: ir/memory/memory_plan.h. Call, storage, life: ir/memory/timeline.h. Planned value: a
//   result of a leaf node that allocates (it aliases no operand), lies on the program's device and needs
//   a number of bytes that its type tells; a staged copy of a partition's operand is one too. It lives
//   from its call to the end of its storage's life: the last reader of any alias, the wait of a
//   collective, the end of the entry for what is returned, the last reader in `backward` for what
//   `forward` saves. Staged copies of inputs live from the entry's first call on, others from the first
//   partition that takes them.
// Before: operands tagged, RNG states bound.
//     %y : Float(256, …) = aten::mm(%a, %b)
// After: each leaf node with a planned value has one offset an output, -1 for outputs without one; each
//   partition with staged operands one an operand. Nothing else changes.
//     %y : Float(256, …) = aten::mm[arena=[4096]](%a, %b)
//     … = cudagraph::partition[index=0, tags=["static: parameter", "staged: user input"],
//                              staging=[-1, 0]](%w, %x)
//   One Analysis remark ("arena-planned"): bytes, load, their ratio, and what is left out and why.
//   The runtime plans again from the sizes that it records, temporaries within operators included.
// Complexity: linear in nodes plus edges, and the planner's (docs/memory.md).
// Refuses: nothing. What has no size before the run stays with PyTorch's allocator.

#include "ir/memory/memory_plan.h"
#include "passes/pass.h"

namespace gravure {

/// The plan that plan-memory writes down, without writing it. Buffers in the order of the program.
MemoryPlan planMemory(const Program& program, const PassOptions& options);

/// The plan that the attributes of `program` hold, before or after emit-runtime-calls; buffers that
/// should be planned and are not have offset -1.
MemoryPlan writtenPlan(const Program& program, const PassOptions& options,
                       const KeptAnalyses& analyses = {});

void planMemory(Program& program, PassContext& context);
/// The written plan holds every planned value and nothing else, and MemoryPlan::verify accepts it.
void verifyPlanMemory(const Program& program, const PassContext& context);

}  // namespace gravure
