#pragma once
// Gradients of a step, given to the tensors that they belong to as loss.backward() gives them.

#include "ir/program.h"

#include <ATen/core/ivalue.h>

#include <string>
#include <utility>
#include <vector>

namespace gravure {

/// Which outputs of an entry are gradients, and of which inputs.
class GradientTargets {
 public:
  explicit GradientTargets(const Entry& entry);

  /// Says which inputs the entry itself updates. Their gradients are used up inside.
  void setUpdated(const Entry& entry, const std::vector<int64_t>& inputs);

  /// TORCH_CHECK naming an input whose gradient could not be given as autograd would: one that is no
  /// leaf, does not require a gradient, or (`hooks`) had a hook ever; and an updated one that does not
  /// require a gradient any more, or has one already.
  void check(const std::vector<c10::IValue>& inputs, bool hooks) const;

  /// Adds each gradient to `.grad` of its input: the first one becomes it, later ones are added in
  /// place. Returns the other results, in order.
  std::vector<c10::IValue> accumulate(const std::vector<c10::IValue>& inputs,
                                      std::vector<c10::IValue> results) const;

 private:
  struct Target {
    size_t output;
    size_t input;
    std::string name;
  };
  std::vector<Target> targets_;
  std::vector<std::pair<size_t, std::string>> updated_;  // input and name
};

}  // namespace gravure
