#include "python/csrc/autograd/gradients.h"

#include <ATen/ops/_foreach_add.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/utils/grad_layout_contract.h>
#include <torch/csrc/autograd/variable.h>

#include <utility>

namespace gravure {

namespace {

/// As AccumulateGrad does: a gradient becomes `.grad` itself if nobody else holds it and it has the
/// tensor's own strides, else a copy of it does.
at::Tensor asFirstGradient(at::Tensor gradient, const at::Tensor& leaf) {
  namespace utils = torch::autograd::utils;
  const bool ours = gradient.use_count() == 1 && gradient.storage().use_count() == 1;
  if (ours && utils::obeys_layout_contract(gradient, leaf)) return gradient;
  return utils::clone_obey_contract(gradient, leaf);
}

void refuseHooks(const at::Tensor& tensor, const std::string& name) {
  const bool hooked = !torch::autograd::impl::hooks(tensor).empty() ||
                      torch::autograd::impl::post_acc_grad_hooks(tensor);
  if (!hooked) return;
  throw StepRefusal(
      "hook", "\"" + name +
                  "\" has a hook on its gradient, and a step runs without autograd; remove the "
                  "hook, or use torch.compile(backend=\"gravure\"), which runs it");
}

/// DistributedDataParallel, FSDP1 and Megatron keep the node that accumulates, for their hooks on it.
void refuseNodeHooks(const at::Tensor& tensor, const std::string& name) {
  const auto node = torch::autograd::impl::try_get_grad_accumulator(tensor);
  TORCH_CHECK(node == nullptr || (node->pre_hooks().empty() && node->post_hooks().empty()), "\"",
              name,
              "\" has hooks on the node that accumulates its gradient, as DistributedDataParallel "
              "sets them, and a step runs without autograd: they would not average it; use "
              "torch.compile(backend=\"gravure\"), which runs them");
}

}  // namespace

GradientTargets::GradientTargets(const Entry& entry, bool areStatic) : areStatic_(areStatic) {
  for (size_t o = 0; o < entry.outputs.size(); ++o) {
    if (entry.outputs[o].role != OutputRole::Gradient) continue;
    const std::string& name = entry.outputs[o].name;
    size_t input = 0;
    while (input < entry.inputs.size() && entry.inputs[input].name != name) ++input;
    TORCH_CHECK(input < entry.inputs.size(), "entry ", entry.name, " returns a gradient of \"",
                name, "\", which it does not take");
    targets_.push_back({o, input, name});
  }
}

void checkGradientOf(const at::Tensor& tensor, const std::string& name, bool hooks) {
  if (!tensor.requires_grad()) {
    throw StepRefusal("training", "\"" + name +
                                      "\" does not require a gradient; it did when the step was "
                                      "compiled");
  }
  TORCH_CHECK(tensor.is_leaf(), "\"", name,
              "\" requires a gradient and was computed outside of the step; compute it inside, or "
              "detach it");
  refuseNodeHooks(tensor, name);
  if (hooks) refuseHooks(tensor, name);
}

GradientTargets::Named GradientTargets::named(const Entry& entry,
                                              const std::vector<int64_t>& inputs) {
  Named found;
  for (int64_t input : inputs) {
    const bool known = input >= 0 && input < static_cast<int64_t>(entry.inputs.size());
    TORCH_CHECK(known, "entry ", entry.name, " has no input at position ", input);
    found.emplace_back(input, entry.inputs[input].name);
  }
  return found;
}

void GradientTargets::setUpdated(const Entry& entry, const std::vector<int64_t>& inputs) {
  updated_ = named(entry, inputs);
}

void GradientTargets::setFrozen(const Entry& entry, const std::vector<int64_t>& inputs) {
  frozen_ = named(entry, inputs);
}

void GradientTargets::check(const std::vector<c10::IValue>& inputs, bool hooks) const {
  for (const auto& [input, name] : frozen_) {
    if (!inputs[input].toTensor().requires_grad()) continue;
    throw StepRefusal("training", "\"" + name +
                                      "\" requires a gradient; it did not when the step was "
                                      "compiled");
  }
  for (const Target& target : targets_) {
    const at::Tensor& tensor = inputs[target.input].toTensor();
    checkGradientOf(tensor, target.name, hooks);
    const at::Tensor& grad = tensor.grad();
    const bool written = target.given && grad.defined() && grad.const_data_ptr() == target.given;
    TORCH_CHECK(!written, "\"", target.name,
                "\" has the static gradient of the last step, which this one writes over; call "
                "zero_grad(set_to_none=True) before, or take results=\"accumulate\"");
  }
  for (const auto& [input, name] : updated_) {
    const at::Tensor& tensor = inputs[input].toTensor();
    checkGradientOf(tensor, name, hooks);
    TORCH_CHECK(!tensor.grad().defined(), "\"", name,
                "\" has a gradient already, which a step with its optimizer would not add to; call "
                "zero_grad(set_to_none=True) before");
  }
}

std::vector<c10::IValue> GradientTargets::accumulate(const std::vector<c10::IValue>& inputs,
                                                     std::vector<c10::IValue> results) {
  const c10::AutoGradMode noGraph(false);
  std::vector<at::Tensor> sums, terms;
  for (Target& target : targets_) {
    const at::Tensor& leaf = inputs[target.input].toTensor();
    at::Tensor gradient = std::move(results[target.output]).toTensor();
    // As autograd does: the backward of an LSTM on the CPU gives Float, whatever it was traced as.
    if (gradient.scalar_type() != leaf.scalar_type()) gradient = gradient.to(leaf.scalar_type());
    at::Tensor& grad = leaf.mutable_grad();
    if (grad.defined()) {
      sums.push_back(grad);
      terms.push_back(std::move(gradient));
    } else if (areStatic_) {
      target.given = gradient.const_data_ptr();
      grad = std::move(gradient);
    } else {
      grad = asFirstGradient(std::move(gradient), leaf);
    }
  }
  if (!sums.empty()) at::_foreach_add_(sums, terms);
  std::vector<c10::IValue> rest;
  size_t next = 0;
  for (size_t o = 0; o < results.size(); ++o) {
    const bool given = next < targets_.size() && targets_[next].output == o;
    if (given) {
      ++next;
    } else {
      rest.push_back(std::move(results[o]));
    }
  }
  return rest;
}

}  // namespace gravure
