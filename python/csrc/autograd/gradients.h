#pragma once
// Gradients of a step, given to the tensors that they belong to as loss.backward() gives them.

#include "ir/core/program.h"

#include <ATen/core/ivalue.h>
#include <c10/util/Exception.h>

#include <string>
#include <utility>
#include <vector>

namespace gravure {

/// A step that has not run, for a reason that its caller may remove: "training" or "hook", as
/// LoadedProgram::refusal() says.
class StepRefusal final : public c10::Error {
 public:
  StepRefusal(std::string kind, const std::string& message)
      : c10::Error({"", "", 0}, message), kind_(std::move(kind)) {}
  const std::string& kind() const { return kind_; }

 private:
  std::string kind_;
};

/// Refuses, by name, a tensor whose gradient could not be given as autograd would. TORCH_CHECK: it is no
/// leaf, or has hooks on the node that accumulates. StepRefusal: it does not require a gradient, or
/// (`hooks`) had a hook itself ever.
void checkGradientOf(const at::Tensor& tensor, const std::string& name, bool hooks);

/// Which outputs of an entry are gradients, and of which inputs.
class GradientTargets {
 public:
  /// `areStatic`: gradients are results at one address each step, and become `.grad` as they are.
  GradientTargets(const Entry& entry, bool areStatic);

  /// Says which inputs the entry itself updates. Their gradients are used up inside.
  void setUpdated(const Entry& entry, const std::vector<int64_t>& inputs);

  /// Says which inputs required no gradient when the step was compiled.
  void setFrozen(const Entry& entry, const std::vector<int64_t>& inputs);

  /// checkGradientOf() of each input; StepRefusal naming a frozen one that requires a gradient now;
  /// TORCH_CHECK naming an updated one that has a gradient already, or, with static results, one whose
  /// `.grad` is the gradient that this step would write over.
  void check(const std::vector<c10::IValue>& inputs, bool hooks) const;

  /// True if no gradient is handed out: accumulate() returns all results as they are.
  bool empty() const { return targets_.empty(); }

  /// Adds each gradient to `.grad` of its input: the first one becomes it, later ones are added in
  /// place. Returns the other results, in order.
  std::vector<c10::IValue> accumulate(const std::vector<c10::IValue>& inputs,
                                      std::vector<c10::IValue> results);

 private:
  struct Target {
    size_t output;
    size_t input;
    std::string name;
    const void* given = nullptr;  // where the last static gradient lay
  };
  bool areStatic_;
  std::vector<Target> targets_;
  using Named = std::vector<std::pair<size_t, std::string>>;  // inputs
  static Named named(const Entry& entry, const std::vector<int64_t>& inputs);
  Named updated_, frozen_;
};

}  // namespace gravure
