#pragma once
// The inputs of a program's entries, step by step, for one of the sides that are compared.

#include "tools/gravure/command/load.h"

#include <c10/core/Device.h>

#include <map>
#include <string>
#include <vector>

namespace gravure::tool {

/// Values of one side: kept tensors are its own and stay at their addresses, what the caller gives
/// anew is drawn for each step. Two made with the same arguments give equal values.
class StepInputs {
 public:
  /// `device`: where tensors of the program's compute device are put. std::runtime_error naming the
  /// input if one has no value, and none can be made from its type.
  StepInputs(const ProgramFile& loaded, c10::Device device, uint64_t seed);

  /// Draws what is new in step `step` (from 0), and nudges the floating-point parameters in place,
  /// as an optimizer would. Forgets the saved values of the step before.
  void beginStep(int64_t step);
  /// Values of an entry's inputs, in order.
  std::vector<c10::IValue> inputsOf(const Entry& entry) const;
  /// Remembers the entry's saved outputs for the entries that read them.
  void keepSaved(const Entry& entry, const std::vector<c10::IValue>& outputs);
  /// Forgets the values that entries saved.
  void dropSaved() { saved_.clear(); }

 private:
  struct Source {
    c10::IValue original;  // on the CPU for tensors that are drawn
    c10::IValue current;
    c10::Device device = at::kCPU;
    InputRole role = InputRole::Unspecified;
    bool redraw = false;  // anew each step
  };
  void addSource(const Entry& entry, size_t index, const ProgramFile& loaded);
  c10::IValue originalOf(const Entry& entry, size_t index, const ProgramFile& loaded) const;

  c10::Device programDevice_;
  c10::Device device_;
  uint64_t seed_;
  std::map<std::string, Source> sources_;  // by "role name"; std::map: the same order on both sides
  std::map<std::string, c10::IValue> saved_;
};

}  // namespace gravure::tool
