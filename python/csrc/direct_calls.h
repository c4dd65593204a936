#pragma once
// Calls of a program by Python without torch.classes, which looks up modules, classes and schemas in each call
// and takes longer than a replay does.

#include <cstdint>
#include <string>
#include <vector>

namespace gravure {

class LoadedProgram;

/// Of a method of LoadedProgram's, an object of Python's that can be called like torch.classes' and does the
/// same. As a number, since torch.classes has no type for it: the address, of which the caller is a holder.
struct DirectCall {
  /// "run", "run_tensors", "run_differentiable", "run_step", "run_step_tensors", "run_update" or
  /// "run_on_gradients".
  std::string method;
  std::string entry;  // the first argument, where the method has one
  /// Objects of Python's, by address. `slow`: the method by torch.classes; it is called in place of this one
  /// where arguments are of other types than tensors, numbers, and lists of them. `report`: the method
  /// report_parked(). `tensors`: types of plain tensors.
  int64_t slow = 0, report = 0;
  std::vector<int64_t> tensors;
};
/// 0 where the process has not what it takes. Called without Python's lock.
int64_t makeDirectCall(LoadedProgram& program, const DirectCall& call);

/// Says what was warned of in the direct call that this thread has just made, and throws what it threw: as a
/// method of torch.classes, whose way to Python's warnings and exceptions both get so.
void reportParked();

}  // namespace gravure
