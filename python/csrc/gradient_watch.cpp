#include "python/csrc/gradient_watch.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

namespace gravure {

using torch::autograd::Node;
using torch::autograd::variable_list;

void GradientWatch::watch(const std::vector<at::Tensor>& results,
                          const std::vector<int64_t>& through, int64_t graph) {
  TORCH_CHECK(results.size() == through.size(), "watch_results: ", through.size(), " numbers for ",
              results.size(), " results");
  const auto first = std::find_if(results.begin(), results.end(), [](const at::Tensor& result) {
    return result.defined() && result.grad_fn();
  });
  if (first == results.end()) return;
  Node& node = *first->grad_fn();
  const auto inputOf = [&](const at::Tensor& result) {
    const bool isIts = result.defined() && result.grad_fn().get() == &node;
    return isIts ? std::optional<size_t>(result.output_nr()) : std::nullopt;
  };
  std::vector<Watched> watched;
  for (size_t i = 0; i < results.size(); ++i) {
    const auto input = inputOf(results[i]);
    if (!input) continue;
    std::vector<size_t> others;
    for (size_t j = 0; j < results.size() && j < 63; ++j) {
      if ((through[i] >> j & 1) == 0) continue;
      if (const auto other = inputOf(results[j])) others.push_back(*other);
    }
    watched.push_back({WeakTensor(results[i].getIntrusivePtr()), static_cast<int64_t>(i), *input,
                       std::move(others), through[i]});
  }
  if (watched.size() < 2) return;
  node.add_tensor_pre_hook(
      std::unique_ptr<GradientWatch>(new GradientWatch(node, std::move(watched), graph)));
}

variable_list GradientWatch::operator()(const variable_list& gradients) {
  const auto isGiven = [&](size_t input) {
    return input < gradients.size() && gradients[input].defined();
  };
  for (const Watched& result : watched_) {
    const bool leads = std::any_of(result.others.begin(), result.others.end(), isGiven);
    if (leads && node_.retains_grad_hooks().count(result.input) != 0)
      tell(result, How::Retained, {});
    if (leads && isAsked(result.input)) tell(result, How::Asked, {});
    if (node_.tensor_pre_hooks().size() < 2 || (!leads && isGiven(result.input))) continue;
    const at::Tensor tensor(result.tensor.lock());
    // One that was written since has its hooks on that write's node.
    if (tensor.defined() && tensor.grad_fn().get() == &node_)
      tell(result, leads ? How::Hooked : How::Called, tensor);
  }
  return gradients;
}

/// By torch.autograd.grad, or backward(inputs=…).
bool GradientWatch::isAsked(size_t input) const {
  const auto* asked = torch::autograd::get_current_graph_task_exec_info();
  if (asked == nullptr) return false;
  const auto found = asked->find(&node_);
  if (found == asked->end() || !found->second.captures_) return false;
  const auto& captures = *found->second.captures_;
  return std::any_of(captures.begin(), captures.end(), [&](const auto& capture) {
    return static_cast<size_t>(capture.input_idx_) == input;
  });
}

void GradientWatch::tell(const Watched& result, How how, at::Tensor tensor) const {
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("gravure::seen_result", "");
  const auto hooked = tensor.defined() ? c10::IValue(std::move(tensor)) : c10::IValue();
  torch::jit::Stack stack{graph_, result.position, result.through, static_cast<int64_t>(how),
                          hooked};
  op.callBoxed(stack);
}

}  // namespace gravure
