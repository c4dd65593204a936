// LoadedProgram's runs whose backward autograd calls without Python.

#include "ir/torch_private/arrived_gradients.h"
#include "ir/torch_private/autograd_node.h"
#include "python/csrc/backward_node.h"
#include "python/csrc/loaded_program.h"

#include <ATen/SavedTensorHooks.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/AutogradState.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <sstream>
#include <utility>

namespace gravure {

namespace {

const c10::DispatchKeySet kSpecialTensors({
    c10::DispatchKey::Python,
    c10::DispatchKey::FuncTorchGradWrapper,
    c10::DispatchKey::FuncTorchBatched,
    c10::DispatchKey::Functionalize,
});

bool isPlain(const at::Tensor& tensor) {
  return tensor.defined() && !tensor.key_set().has_any(kSpecialTensors) && !tensor.is_inference() &&
         !tensor._fw_grad(/*level=*/0).defined();
}

/// Whether nothing is set that AOTAutograd's wrapper looks after: hooks that see what is saved, modes
/// and tensors that see operators.
bool isPlainCall(const std::vector<at::Tensor>& values) {
  return !at::SavedTensorDefaultHooks::get_hooks(/*ignore_is_tracing=*/true).has_value() &&
         !c10::impl::dispatch_mode_enabled() && !c10::InferenceMode::is_enabled() &&
         !c10::impl::tls_is_dispatch_key_included(
             c10::DispatchKey::FuncTorchDynamicLayerFrontMode) &&
         std::all_of(values.begin(), values.end(), isPlain);
}

}  // namespace

void LoadedProgram::setAutograd(const AutogradPlan::Lists& lists, const at::Tensor& alive,
                                const std::string& graph) {
  const std::lock_guard lock(mutex_);
  alive_ = alive;
  graph_ = graph;
  autograd_ = std::make_shared<AutogradPlan>(
      AutogradPlan::parse(lists, entry("forward"), entry("backward")));
}

std::vector<at::Tensor> LoadedProgram::runDifferentiable(const std::vector<at::Tensor>& values) {
  if (!isPlainCall(values) || tangentNews_.load(std::memory_order_acquire)) return {};
  const auto lock = turn();
  TORCH_CHECK(autograd_, "run_differentiable: set_autograd comes first");
  const KernelSettings settings = KernelSettings::now();
  if (isMadeForOthers(settings)) return {};
  if (defers_ && !repeats_ && runtime_->holdsSaved()) return {};
  const Bound& state = bound("forward");
  const AliveTensors alive(state.weak);
  std::vector<c10::IValue> inputs = allInputs(state, alive, values);
  const auto isTrained = [&](int64_t i) { return inputs[i].toTensor().requires_grad(); };
  if (std::any_of(autograd_->frozen.begin(), autograd_->frozen.end(), isTrained)) return {};
  // What was frozen since: its gradient would be computed in vain.
  if (!std::all_of(autograd_->edges.begin(), autograd_->edges.end(), isTrained)) return {};
  std::vector<at::Tensor> differentiable;
  differentiable.reserve(autograd_->edges.size());
  for (int64_t position : autograd_->edges) {
    differentiable.push_back(inputs[position].toTensor());
  }
  const c10::AutoGradMode noGraph(false);
  std::vector<c10::IValue> results;
  try {
    results = runLogged(state, std::move(inputs), &settings);
  } catch (const InputsShared&) {
    return {};
  }
  // The device is at work by now.
  torch::autograd::edge_list edges;
  edges.reserve(differentiable.size());
  for (const at::Tensor& value : differentiable) {
    edges.push_back(torch::autograd::impl::gradient_edge(value));
  }
  const auto node = torch_private::makeNode<BackwardNode>(
      c10::intrusive_ptr<LoadedProgram>::unsafe_reclaim_from_nonowning(this), autograd_,
      std::move(edges));
  std::vector<at::Tensor> outputs = node->takeResults(std::move(results));
  torch_private::announce(node);
  return outputs;
}

void LoadedProgram::setDefers(bool defers) {
  const auto lock = turn();
  defers_ = defers;
}

bool LoadedProgram::holdsSaved() const {
  const auto lock = turn();
  return runtime_->holdsSaved();
}

void LoadedProgram::warmUpWith(const c10::intrusive_ptr<LoadedProgram>& other) {
  const auto lock = turn();
  runtime_->warmUpWith(*other->runtime_);
  warned_ = other->warned_;
}

void LoadedProgram::learnFrom(const c10::intrusive_ptr<LoadedProgram>& other) {
  const auto lock = turn();
  runtime_->learnFrom(*other->runtime_);
  warned_ = other->warned_;
}

std::vector<c10::IValue>
LoadedProgram::runBackward(std::vector<std::pair<int64_t, c10::IValue>> values, bool last) {
  const auto lock = turn();
  const Bound& state = bound("backward");
  const AliveTensors alive(state.weak);
  std::vector<c10::IValue> inputs = boundValues(state, alive);
  for (auto& [position, value] : values) inputs[position] = std::move(value);
  if (last) return runLogged(state, std::move(inputs));
  return runCounted(state, std::move(inputs), /*captured=*/false);
}

void LoadedProgram::setWhole(const c10::intrusive_ptr<LoadedProgram>& whole) {
  whole_ = whole;
  warned_ = whole->warned_;
}

c10::intrusive_ptr<LoadedProgram> LoadedProgram::apart() {
  {
    const std::lock_guard lock(apartMutex_);
    if (apart_) return apart_;
  }
  // Without the lock, which a thread that waits for Python must not have.
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("gravure::apart", "");
  torch::jit::Stack stack{autograd_->number};
  op.callBoxed(stack);
  const c10::IValue made = stack.back();
  const std::lock_guard lock(apartMutex_);
  if (!apart_ && !made.isNone()) apart_ = made.toCustomClass<LoadedProgram>();
  return apart_;
}

bool LoadedProgram::hasArrivedGradient(int64_t edge) {
  const auto node = torch::autograd::get_current_node();
  if (!node || edge >= static_cast<int64_t>(node->num_outputs())) return false;
  const torch::autograd::Edge& to = node->next_edge(edge);
  return to.is_valid() && torch_private::hasArrived(to);
}

std::vector<int64_t> LoadedProgram::noteTangents(const std::vector<at::Tensor>& tangents) {
  const bool isFitted = whole_ != nullptr;
  // Others in flight, before Python has asked, are run as the first one is.
  const bool isFirst = isFitted || !tangentsNoted_.exchange(true);
  if (!isFirst && !tangentNews_.load(std::memory_order_acquire)) return {};
  std::vector<int64_t> news;
  if (isFitted) {
    for (size_t i = 0; i < tangents.size(); ++i) {
      const TangentForm& form = autograd_->forms[i];
      if (form.fits(tangents[i])) continue;
      const bool came = form.kind == TangentForm::Kind::Absent || !tangents[i].defined();
      if (news.empty() || came) news = {came ? kCameAfterAll : kLiesOtherwise};
    }
    if (news.empty() || tangentsNoted_.exchange(true)) return {};
  } else {
    bool asTraced = true;
    for (size_t i = 0; i < tangents.size(); ++i) {
      const TangentForm form = formOf(i, tangents[i]);
      asTraced = asTraced && form.kind == TangentForm::Kind::AsTraced;
      form.append(news);
    }
    if (asTraced) return {};
    if (!isFirst) return news;
  }
  tangentForms_ = news;
  tangentNews_.store(true, std::memory_order_release);
  if (isFitted) return {};
  return news;
}

TangentForm LoadedProgram::formOf(size_t i, const at::Tensor& tangent) const {
  if (!tangent.defined()) return {TangentForm::Kind::Absent, {}};
  const auto format = static_cast<c10::MemoryFormat>(autograd_->tangentFormats[i]);
  if (autograd_->tangentTo[i] < 0 || tangent.is_contiguous(format)) return {};
  return {TangentForm::Kind::Strided, tangent.strides().vec()};
}

std::vector<int64_t> LoadedProgram::takeTangentNews() {
  if (!tangentNews_.exchange(false, std::memory_order_acq_rel)) return {};
  return std::exchange(tangentForms_, {});
}

c10::intrusive_ptr<LoadedProgram> LoadedProgram::fitted(const std::vector<int64_t>& forms,
                                                        bool apart) {
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("gravure::fitted", "");
  torch::jit::Stack stack{autograd_->number, c10::List<int64_t>(forms), apart};
  op.callBoxed(stack);
  const c10::IValue made = stack.back();
  return made.isNone() ? nullptr : made.toCustomClass<LoadedProgram>();
}

void LoadedProgram::warnOfAutocast() {
  if (warned_->ofAutocast.exchange(true)) return;
  logToUser(LogLevel::Warning,
            {"backward() is called under autocast, and the compiled one was traced without, or the "
             "other way round: it may round otherwise than eager's. Call the model's backwards all "
             "in the same place, best behind the `with`"});
}

void LoadedProgram::warnOfLayout(size_t index, const at::Tensor& tangent) {
  if (warned_->ofLayout.exchange(true)) return;
  size_t output = 0;
  for (size_t left = index; left > 0 || autograd_->differentiable[output] == 0; ++output)
    left -= autograd_->differentiable[output];
  std::ostringstream message;
  message << graph_ << ": the gradient of result " << output << " has sizes " << tangent.sizes()
          << " and strides " << tangent.strides() << ". The backward was traced for one in the "
          << "result's memory format, so it is copied first. Eager reads it as it lies: the "
          << "last bits of some gradients may be others than eager's. Compute what follows, as the "
          << "loss, inside of the compiled function, or take gravure.compile_step";
  logToUser(LogLevel::Warning, {message.str()});
}

void LoadedProgram::repeatResults(bool repeats) {
  const std::lock_guard lock(mutex_);
  repeats_ = repeats;
  repeated_.clear();
}

std::vector<c10::IValue> LoadedProgram::repeated(const std::string& name) const {
  std::vector<c10::IValue> results = repeated_.at(name);
  for (c10::IValue& value : results) {
    // Autograd marks what it is given.
    if (value.isTensor() && value.toTensor().defined()) value = value.toTensor().tensor_data();
  }
  return results;
}

}  // namespace gravure
