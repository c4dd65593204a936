#pragma once
// One way of running a program, step by step: captured, or node by node.

#include "runtime/runtime.h"
#include "tools/gravure/run/step_inputs.h"

#include <memory>
#include <string>
#include <vector>

namespace gravure::tool {

/// Makes the device that --device names: "host", "cuda", "cuda:1". UsageError for another word;
/// c10::Error if the machine does not have it.
std::unique_ptr<Device> makeDevice(const std::string& name);

class Side {
 public:
  /// `emitted`: what emit-runtime-calls left of `loaded.program`.
  Side(const ProgramFile& loaded, const Program& emitted, std::unique_ptr<Device> device,
       RuntimeOptions options, uint64_t seed);

  void beginStep(int64_t step) { inputs_.beginStep(step); }
  /// Runs one entry and keeps its outputs, the saved ones for the entries that read them.
  void run(const Entry& entry);

  const std::vector<c10::IValue>& inputs() const { return current_; }
  const std::vector<c10::IValue>& outputs() const { return outputs_; }
  void dropResults();
  /// Flips the lowest bit of the last element of the first tensor among the outputs.
  void flipBit();
  Runtime& runtime() { return runtime_; }

 private:
  Runtime runtime_;
  StepInputs inputs_;
  std::vector<c10::IValue> current_;
  std::vector<c10::IValue> outputs_;
};

/// States of the default generators that a program on `device` can draw from.
class GeneratorStates {
 public:
  explicit GeneratorStates(c10::Device device);  // as they are now
  void restore() const;
  /// "" if both are in the same state, else the generator that is not.
  std::string firstDifference(const GeneratorStates& other) const;

 private:
  std::vector<std::pair<c10::Device, at::Tensor>> states_;
};

}  // namespace gravure::tool
