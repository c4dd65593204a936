#pragma once
// Whether somebody asks for the gradient of a result that autograd does not have as in eager.

#include "python/csrc/autograd/weak_tensors.h"

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>

#include <cstdint>
#include <vector>

namespace gravure {

/// A hook on the node of a graph. Eager leads a gradient from the one result to the other; a graph that is one
/// node does so inside, where no hook, retain_grad() or torch.autograd.grad sees it. And such a node calls the
/// hooks of all results, with nothing where no gradient comes, where eager calls none. It stands ahead of the
/// user's hooks, which may fail by what they are given. Python is told each time (calls/seen_results.py).
class GradientWatch final : public torch::autograd::FunctionPreHook {
 public:
  /// Of the node of `results`, if there are several. `through`: one a result: a bit for each result whose gradient
  /// eager would lead through it. `graph`: its number in Python.
  static void watch(const std::vector<at::Tensor>& results, const std::vector<int64_t>& through,
                    int64_t graph);

  torch::autograd::variable_list
  operator()(const torch::autograd::variable_list& gradients) override;
  /// Compiled autograd's hooks are Dynamo's to call.
  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs&) const override {}

 private:
  enum class How : int64_t { Retained = 0, Hooked = 1, Asked = 2, Called = 3 };

  struct Watched {
    WeakTensor tensor;           // a result
    int64_t position;            // among them
    size_t input;                // of the node
    std::vector<size_t> others;  // inputs, those of `through`
    int64_t through;
  };

  GradientWatch(torch::autograd::Node& node, std::vector<Watched> watched, int64_t graph)
      : node_(node), watched_(std::move(watched)), graph_(graph) {}

  bool isAsked(size_t input) const;
  void tell(const Watched& result, How how, at::Tensor tensor) const;

  torch::autograd::Node& node_;  // which keeps this
  std::vector<Watched> watched_;
  int64_t graph_;
};

}  // namespace gravure
