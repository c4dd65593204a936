#include "python/csrc/backward_node.h"

#include "ir/torch_private/arrived_gradients.h"
#include "ir/torch_private/autograd_node.h"
#include "python/csrc/autograd/weak_tensors.h"
#include "python/csrc/gradient_watch.h"
#include "python/csrc/loaded_program.h"
#include "runtime/device/device.h"
#include "runtime/results/results.h"

#include <ATen/Context.h>
#include <ATen/autocast_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/csrc/dynamo/compiled_autograd.h>

#include <algorithm>
#include <utility>

namespace gravure {

using torch::autograd::variable_list;

namespace {

/// Stands behind gradients that were asked for with create_graph=True, as AOTAutograd's does.
struct RefusingNode final : torch::autograd::Node {
  using Node::Node;
  std::string name() const override { return "GravureBackwardBackward"; }
  variable_list apply(variable_list&&) override {
    TORCH_CHECK(false,
                "torch.compile with aot_autograd does not currently support double backward");
  }
};

void checkModes(const AutogradPlan& plan) {
  const bool functorch =
      c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::FuncTorchDynamicLayerFrontMode);
  TORCH_CHECK(!functorch,
              "It looks like you're trying to call a compiled backward function within "
              "vmap/grad/vjp, which isn't supported. Try wrapping vmap inside torch.compile, or "
              "skip compiling the backward function.");
  TORCH_CHECK(!plan.wasNondeterministic || !at::globalContext().deterministicAlgorithms(),
              "This compiled backward function is being run with "
              "torch.use_deterministic_algorithms(True), but it was previously generated during "
              "the forward function while torch.use_deterministic_algorithms(False) was set.");
}

bool isUnderAutocast(const BackwardCall& call) {
  return std::any_of(call.tangents.begin(), call.tangents.end(), [](const auto& tangent) {
    return at::autocast::is_autocast_enabled(tangent.device().type());
  });
}

/// Whether the backward was made for `tangents`.
bool isMadeFor(const BackwardCall& call, const variable_list& tangents) {
  const auto& forms = call.plan->forms;
  return std::equal(forms.begin(), forms.end(), tangents.begin(), tangents.end(),
                    [](const TangentForm& form, const at::Tensor& t) { return form.fits(t); });
}

/// The same call of the program for any tangents. The forward is the same, and so is what it saved.
BackwardCall wholeOf(const BackwardCall& call) {
  const auto whole = call.program->whole();
  return whole ? BackwardCall{whole, whole->autogradPlan(), call.tangents} : call;
}

/// The same call of the program that gives each term of a gradient by itself; of its own one where there is
/// none, which a warning says.
BackwardCall apartOf(const BackwardCall& call) {
  const auto apart = call.program->apart();
  return apart ? BackwardCall{apart, apart->autogradPlan(), call.tangents} : call;
}

/// Each gradient of an output as the backward was traced for it: there, plain, and so in memory.
variable_list prepared(const BackwardCall& call, const variable_list& tangents) {
  TORCH_CHECK(tangents.size() == call.tangents.size(), "a compiled backward takes ",
              call.tangents.size(), " gradients, and was given ", tangents.size());
  variable_list found;
  found.reserve(tangents.size());
  for (size_t i = 0; i < tangents.size(); ++i) {
    const TangentForm::Kind kind = call.plan->forms[i].kind;
    if (kind == TangentForm::Kind::Absent) {
      found.emplace_back();
      continue;
    }
    at::Tensor tangent = tangents[i].defined() ? tangents[i] : call.tangents[i].zeros_like();
    TORCH_CHECK(!tangent.key_set().has(c10::DispatchKey::Python),
                "During the backward, we encountered a tensor subclass where we guessed its "
                "metadata incorrectly: a plain tensor was expected as the gradient of output ",
                i);
    const auto format = static_cast<c10::MemoryFormat>(call.plan->tangentFormats[i]);
    if (kind == TangentForm::Kind::AsTraced && !tangent.is_contiguous(format)) {
      if (call.plan->tangentTo[i] >= 0) call.program->warnOfLayout(i, tangent);
      tangent = tangent.contiguous(format);
    }
    found.push_back(std::move(tangent));
  }
  return found;
}

/// A bit for each that is there.
int64_t givenOf(const variable_list& tangents) {
  int64_t given = 0;
  for (size_t i = 0; i < tangents.size() && i < 63; ++i)
    given |= static_cast<int64_t>(tangents[i].defined()) << i;
  return given;
}

/// `given`: as givenOf(), of what autograd had. A gradient that depends on none of it is undefined, as in
/// eager. `last`: `saved` are not needed again.
variable_list run(const BackwardCall& call, const variable_list& tangents, int64_t given,
                  std::vector<c10::IValue> saved, bool last) {
  const c10::AutoGradMode noGraph(false);
  std::vector<std::pair<int64_t, c10::IValue>> inputs;
  const AutogradPlan& plan = *call.plan;
  for (size_t i = 0; i < saved.size(); ++i) {
    if (plan.savedTo[i] >= 0) {
      inputs.emplace_back(plan.savedTo[i], std::move(saved[i]));
    } else if (!saved[i].isTensor() || !isLent(saved[i].toTensor())) {
      saved[i] = c10::IValue();  // the memory of others, which compiled code gives back
    }
  }
  for (size_t i = 0; i < tangents.size(); ++i) {
    if (plan.tangentTo[i] >= 0) inputs.emplace_back(plan.tangentTo[i], tangents[i]);
  }
  // What is lent and the backward does not read stays in `saved` until then: it may be the others' loan.
  const std::vector<c10::IValue> results = call.program->runBackward(std::move(inputs), last);
  variable_list gradients;
  gradients.reserve(plan.gradients.size());
  for (size_t i = 0; i < plan.gradients.size(); ++i) {
    const bool reached = plan.gradients[i] >= 0 && (plan.needs[i] & given) != 0;
    gradients.push_back(reached ? results[plan.gradients[i]].toTensor() : at::Tensor());
  }
  return gradients;
}

/// Undefined where a value is a number.
std::vector<at::Tensor> tensorsOf(const std::vector<c10::IValue>& values) {
  std::vector<at::Tensor> tensors;
  tensors.reserve(values.size());
  for (const c10::IValue& value : values)
    tensors.push_back(value.isTensor() ? value.toTensor() : at::Tensor());
  return tensors;
}

/// `values`, in which tensors are exchanged for `tensors`.
std::vector<c10::IValue> withTensors(std::vector<c10::IValue> values,
                                     const std::vector<at::Tensor>& tensors) {
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i].isTensor()) values[i] = tensors[i];
  }
  return values;
}

/// An undefined tensor where a value is one.
std::vector<c10::IValue> numbersOf(std::vector<c10::IValue> values) {
  for (c10::IValue& value : values) {
    if (value.isTensor()) value = at::Tensor();
  }
  return values;
}

bool requiresGrad(const std::vector<at::Tensor>& tensors) {
  return std::any_of(tensors.begin(), tensors.end(),
                     [](const at::Tensor& t) { return t.defined() && t.requires_grad(); });
}

}  // namespace

BackwardNode::BackwardNode(c10::intrusive_ptr<LoadedProgram> program,
                           std::shared_ptr<const AutogradPlan> plan,
                           torch::autograd::edge_list edges)
    : Node(std::move(edges)), call_{std::move(program), std::move(plan), {}} {}

std::string BackwardNode::name() const { return "GravureBackward"; }

std::vector<at::Tensor> BackwardNode::takeResults(std::vector<c10::IValue> results) {
  const AutogradPlan& plan = *call_.plan;
  std::vector<at::Tensor> outputs;
  for (int64_t position : plan.outputs) {
    at::Tensor output = results[position].toTensor();
    // A view of what is inside, or an argument itself: the caller gets a tensor of its own.
    if (output.is_view() || output.requires_grad()) output = output.tensor_data();
    outputs.push_back(std::move(output));
  }
  std::vector<c10::IValue> kept;
  kept.reserve(plan.saved.size());
  for (int64_t position : plan.saved) kept.push_back(apartFrom(results[position], outputs));
  saved_ = WatchedValues(std::move(kept));
  call_.tangents.reserve(plan.tangentTo.size());
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (plan.differentiable[i] == 0) continue;
    torch::autograd::set_history(outputs[i], getptr());
    call_.tangents.push_back(input_metadata(num_inputs() - 1));
  }
  if (!plan.through.empty()) GradientWatch::watch(outputs, plan.through, plan.graph);
  return outputs;
}

WatchedValues BackwardNode::takeSaved() {
  // Without this lock while the program runs: its operators may wait for Python.
  const std::lock_guard lock(mutex_);
  TORCH_CHECK(!released_, torch::autograd::ERR_BACKWARD_TWICE);
  saved_.check();
  if (torch::autograd::get_current_graph_task_keep_graph()) return saved_;
  released_ = true;
  return std::exchange(saved_, {});
}

void BackwardNode::release_variables() {
  WatchedValues dropped;
  const std::lock_guard lock(mutex_);
  released_ = true;
  dropped = std::exchange(saved_, {});
}

/// By the program that is for what other nodes have given by now. `whole`: for any tangents. `forms`: of the
/// tangents, where a program is to be made for them.
BackwardCall BackwardNode::callFor(bool whole, const std::vector<int64_t>& forms) const {
  const BackwardCall call = whole ? wholeOf(call_) : call_;
  const auto hasArrived = [this](size_t i) { return torch_private::hasArrived(next_edge(i)); };
  const auto& shared = call.plan->shared;
  const bool isBehind = call.plan->sums && std::any_of(shared.begin(), shared.end(), hasArrived);
  if (!forms.empty()) {
    const auto fitted = call.program->fitted(forms, isBehind);
    if (fitted) return {fitted, fitted->autogradPlan(), call.tangents};
  }
  return isBehind ? apartOf(call) : call;
}

variable_list BackwardNode::apply(variable_list&& tangents) {
  checkModes(*call_.plan);
  if (call_.program->isFirstBackward())
    torch::autograd::Engine::get_default_engine().queue_callback(giveBackIdleCudaCache);
  if (isUnderAutocast(call_) != call_.plan->inAutocast) call_.program->warnOfAutocast();
  const bool last = !torch::autograd::get_current_graph_task_keep_graph();
  const std::vector<int64_t> forms = call_.program->noteTangents(tangents);
  const BackwardCall call = callFor(!isMadeFor(call_, tangents), forms);
  WatchedValues saved = takeSaved();
  const LetGoTogether parameters(saved.values, call_.plan->ofCaller);
  const int64_t there = givenOf(tangents);
  const variable_list given = prepared(call, tangents);
  tangents.clear();
  // Uncaptured by another program, whose forward did not run.
  const bool isOwn = call.program == call_.program;
  variable_list gradients = run(call, given, there, std::move(saved.values), last && isOwn);
  const bool more =
      c10::GradMode::is_enabled() && (call_.plan->savesDependent || requiresGrad(given));
  return more ? refusingMore(std::move(gradients), given) : gradients;
}

/// The gradients, which depend on what requires one itself, so that a second backward fails.
variable_list BackwardNode::refusingMore(variable_list gradients,
                                         const variable_list& tangents) const {
  torch::autograd::edge_list edges = torch::autograd::collect_next_edges(tangents);
  edges.insert(edges.end(), next_edges().begin(), next_edges().end());
  const auto node = torch_private::makeNode<RefusingNode>(std::move(edges));
  for (at::Tensor& gradient : gradients) {
    if (!gradient.defined()) continue;
    gradient = gradient.tensor_data();  // a tangent may be the caller's
    torch::autograd::set_history(gradient, node);
  }
  torch_private::announce(node);
  return gradients;
}

void BackwardNode::compiled_args(torch::dynamo::autograd::CompiledNodeArgs& args) const {
  TORCH_CHECK(!released_, torch::autograd::ERR_BACKWARD_TWICE);
  saved_.check();
  args.collect(reinterpret_cast<uint64_t>(call_.program.get()));
  args.collect(tensorsOf(saved_.values));
  // Part of what is recorded: other numbers are another record.
  for (const c10::IValue& value : saved_.values) {
    if (!value.isTensor()) args.collect(value.toScalar().toDouble());
  }
}

/// Compiled autograd records one call of an opaque function. Who holds the saved values then is not known
/// here, so that they stay good.
variable_list BackwardNode::apply_with_saved(const variable_list& tangents,
                                             torch::dynamo::autograd::SwapSavedVariables& saved) {
  std::vector<at::Tensor> tensors = tensorsOf(saved_.values);
  saved.before(tensors);
  const std::vector<c10::IValue> packed{tensors};
  auto apply = [call = callFor(/*whole=*/true, {}), numbers = numbersOf(saved_.values)](
                   const variable_list& given, const std::vector<c10::IValue>& args) {
    checkModes(*call.plan);
    return run(call, prepared(call, given), givenOf(given),
               withTensors(numbers, args.at(0).toTensorVector()), /*last=*/false);
  };
  const auto& python = torch::dynamo::autograd::getPyCompilerInterface();
  const std::string bound = python->bind_function(saved.get_py_compiler(), name(), std::move(apply),
                                                  {c10::ListType::ofTensors()},
                                                  /*is_custom_function=*/true,
                                                  /*is_traceable=*/false);
  using Metadata = std::vector<std::optional<torch::autograd::InputMetadata>>;
  const c10::IValue metadata = torch::dynamo::autograd::IValuePacker<Metadata>::pack(
      torch::dynamo::autograd::get_input_metadata(next_edges()));
  auto gradients = python->call_function(saved.get_py_compiler(), "apply_functional", bound,
                                         tangents, packed, metadata);
  saved.after(tensors);
  return gradients;
}

}  // namespace gravure
