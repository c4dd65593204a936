#include "runtime/step/straight_step.h"

#include "runtime/step/runtime_impl.h"

#include <llvm/ADT/STLExtras.h>

namespace gravure {

/// The current seal of `entry`, if it holds for these inputs and the entry can go straight; nullptr else.
/// (Where another seal holds, run() makes it current.) The code of the numbers is made anew where seals have
/// changed.
const Seal* Runtime::Impl::straightSeal(EntryState& entry, const std::vector<c10::IValue>& inputs,
                                        const std::vector<int64_t>& watched) {
  const Seal* const seal = entry.seals.current();
  if (!seal) return nullptr;
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
  // Where numbers alone are loose, their code looks where they lie.
  const bool apart = (known && straight.free.empty()) || seal->areApart(inputs);
  return apart ? seal : nullptr;
}

/// Puts the numbers that launches take into the frame; false where that cannot be. Where tensors that were
/// equal differ now, or lie elsewhere, the code is made anew first.
bool Runtime::Impl::computeNumbers(EntryState& entry, const std::vector<c10::IValue>& inputs,
                                   const std::vector<int64_t>& watched) {
  StraightStep& straight = entry.straight;
  Frame& frame = entry.executor->frame();
  if (straight.numbers->run(inputs, frame)) return true;
  const Seal* const seal = entry.seals.current();
  if (!seal || !seal->areApart(inputs)) return false;
  straight.numbers = NumberCode::of(*entry.code, inputs, watched, straight.why);
  return straight.numbers && straight.numbers->run(inputs, frame);
}

}  // namespace gravure
