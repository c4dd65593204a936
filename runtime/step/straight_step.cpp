#include "runtime/step/straight_step.h"

#include "runtime/step/runtime_impl.h"

#include <llvm/ADT/STLExtras.h>

namespace gravure {

/// The seal by which `entry` goes straight, if it holds for these inputs; nullptr else: the current one,
/// since the slow way makes another one current. What the numbers come to is found anew where seals have
/// changed.
const Seal* Runtime::Impl::straightSeal(EntryState& entry, const std::vector<c10::IValue>& inputs,
                                        const std::vector<int64_t>& watched) {
  const Seal* const seal = entry.seals.current();
  if (!seal || !entry.inputs.moving->empty()) return nullptr;
  StraightStep& straight = entry.straight;
  const bool known = straight.madeFor == entry.seals.changes();
  if (known && !straight.numbers) return nullptr;
  if (!seal->capturesHold(inputs)) return nullptr;
  if (!known) {
    straight.madeFor = entry.seals.changes();
    straight.numbers = NumberCode::of(*entry.code, inputs, watched, straight.why);
    straight.free.clear();
    if (!straight.numbers) return nullptr;
    for (const auto& each : seal->free())
      if (!llvm::is_contained(straight.numbers->inputs(), each.first))
        straight.free.push_back(each);
  }
  for (const auto& [input, check] : straight.free) check->check(inputs[input]);
  return seal;
}

/// True if what launches take of numbers is in the frame. Where tensors that were equal differ, or lie
/// elsewhere, the operations are found anew, once.
bool Runtime::Impl::computeNumbers(EntryState& entry, const std::vector<c10::IValue>& inputs,
                                   const std::vector<int64_t>& watched) {
  StraightStep& straight = entry.straight;
  Frame& frame = entry.executor->frame();
  if (straight.numbers->run(inputs, frame)) return true;
  straight.numbers = NumberCode::of(*entry.code, inputs, watched, straight.why);
  return straight.numbers && straight.numbers->run(inputs, frame);
}

}  // namespace gravure
