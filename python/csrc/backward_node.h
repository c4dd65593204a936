#pragma once
// A program's `backward` as a node of autograd's graph, which runs it without Python.

#include "python/csrc/autograd/autograd_plan.h"
#include "python/csrc/autograd/watched_values.h"

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/autograd/function.h>

#include <memory>
#include <string>
#include <vector>

namespace gravure {

class LoadedProgram;

/// What one backward of a program needs besides what its forward saved.
struct BackwardCall {
  c10::intrusive_ptr<LoadedProgram> program;
  std::shared_ptr<const AutogradPlan> plan;
  std::vector<torch::autograd::InputMetadata> tangents;  // of each, for one that is missing
};

class BackwardNode final : public torch::autograd::Node {
 public:
  BackwardNode(c10::intrusive_ptr<LoadedProgram> program, std::shared_ptr<const AutogradPlan> plan,
               torch::autograd::edge_list edges);

  /// Takes what the forward returned: keeps what the backward needs, and gives the outputs, which are
  /// made this node's.
  std::vector<at::Tensor> takeResults(std::vector<c10::IValue> results);

  std::string name() const override;
  void release_variables() override;
  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs& args) const override;
  torch::autograd::variable_list
  apply_with_saved(const torch::autograd::variable_list& tangents,
                   torch::dynamo::autograd::SwapSavedVariables& saved) override;

 protected:
  torch::autograd::variable_list apply(torch::autograd::variable_list&& tangents) override;

 private:
  WatchedValues takeSaved();
  BackwardCall callFor(bool whole, const std::vector<int64_t>& forms) const;
  torch::autograd::variable_list refusingMore(torch::autograd::variable_list gradients,
                                              const torch::autograd::variable_list& tangents) const;

  BackwardCall call_;
  WatchedValues saved_;
  bool released_ = false;
};

}  // namespace gravure
