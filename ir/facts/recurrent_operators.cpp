// gravure::recurrent and its backward: an LSTM, GRU or RNN that cuDNN runs, as one call of a program.
//
// PyTorch's own operators are no calls for a program: `lstm` returns less than its backward needs, and what
// it is made of (`_cudnn_rnn`) takes cuDNN's state of dropout, which nobody has. So the forward calls eager's
// `lstm`, and takes the rest from autograd's node (recurrent_node.h).
//
// `mode` is cuDNN's: 0 relu, 1 tanh, 2 LSTM, 3 GRU. `offsets`: where cuDNN has each weight in one buffer of
// `flat` elements, for the backward; an nn.LSTM on a GPU keeps its weights so. `reserve_bytes`: the size of
// the last result. cuDNN's backward writes over it: it is given a copy, or, in the form that is donated the
// reserve, which nobody needs behind it, the reserve itself.
// python/gravure/torch_api/cudnn_recurrent.py finds these out, and traces.

#include "ir/facts/recurrent_operators.h"

#include "ir/facts/op_facts.h"
#include "ir/torch_private/recurrent_node.h"

#include <ATen/DeviceGuard.h>
#include <ATen/SavedTensorHooks.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/_cudnn_rnn_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/gru.h>
#include <ATen/ops/lstm.h>
#include <ATen/ops/rnn_relu.h>
#include <ATen/ops/rnn_tanh.h>
#include <ATen/ops/zeros.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/irange.h>
#include <torch/library.h>

#include <algorithm>
#include <mutex>
#include <tuple>
#include <vector>

namespace gravure {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

enum Mode : int64_t { Relu, Tanh, Lstm, Gru };

/// The states of cuDNN's dropout that forwards drew from last, by GPU. Never destroyed.
struct DropoutStates {
  std::mutex mutex;
  std::vector<Tensor> states;

  static DropoutStates& all() {
    static DropoutStates* const all = new DropoutStates;
    return *all;
  }
  void keep(const Tensor& state, c10::DeviceIndex device) {
    const std::lock_guard lock(mutex);
    if (states.size() <= static_cast<size_t>(device)) states.resize(device + 1);
    states[device] = state;
  }
  Tensor of(c10::DeviceIndex device) {
    const std::lock_guard lock(mutex);
    return states.size() <= static_cast<size_t>(device) ? Tensor() : states[device];
  }
};

/// Autograd as where nothing special is on: programs run below it.
class Differentiating {
 public:
  Differentiating() { at::SavedTensorDefaultHooks::set_tls_state({}); }
  ~Differentiating() { at::SavedTensorDefaultHooks::set_tls_state(hooks_); }
  Differentiating(const Differentiating&) = delete;
  Differentiating& operator=(const Differentiating&) = delete;

 private:
  static c10::impl::LocalDispatchKeySet keys() {
    auto keys = c10::impl::tls_local_dispatch_key_set();
    const auto autograd =
        c10::autograd_dispatch_keyset | c10::DispatchKeySet(c10::DispatchKey::ADInplaceOrView);
    keys.excluded_ = keys.excluded_ - autograd;
    keys.included_ = keys.included_ | c10::DispatchKeySet(c10::DispatchKey::ADInplaceOrView);
    return keys;
  }

  const c10::InferenceMode noInference_{false};
  const c10::impl::ForceDispatchKeyGuard keys_{keys()};
  const at::AutoGradMode grad_{true};
  const at::impl::SavedTensorDefaultHooksTLS hooks_ = at::SavedTensorDefaultHooks::get_tls_state();
};

struct Settings {
  int64_t mode;
  bool hasBiases;
  int64_t layers;
  double dropout;
  bool train;
  bool bidirectional;
  bool batchFirst;
};

/// What eager computes: all results, and the last states. `cy` is empty but for an LSTM.
std::tuple<Tensor, Tensor, Tensor> byEager(const Tensor& x, const std::vector<Tensor>& weights,
                                           const Tensor& hx, const OptionalTensor& cx,
                                           const Settings& s) {
  if (s.mode == Lstm) {
    TORCH_CHECK(cx && cx->defined(), "gravure::recurrent: an LSTM needs `cx`");
    return at::lstm(x, {hx, *cx}, weights, s.hasBiases, s.layers, s.dropout, s.train,
                    s.bidirectional, s.batchFirst);
  }
  TORCH_CHECK(s.mode == Relu || s.mode == Tanh || s.mode == Gru,
              "gravure::recurrent: no mode of cuDNN's: ", s.mode);
  const auto with = [&](auto&& call) {
    return call(x, hx, weights, s.hasBiases, s.layers, s.dropout, s.train, s.bidirectional,
                s.batchFirst);
  };
  const auto [output, hy] = s.mode == Gru ? with([](auto&&... args) { return at::gru(args...); })
                            : s.mode == Tanh
                                ? with([](auto&&... args) { return at::rnn_tanh(args...); })
                                : with([](auto&&... args) { return at::rnn_relu(args...); });
  return {output, hy, at::empty({0}, hx.options())};
}

std::vector<Tensor> plain(at::TensorList tensors) {
  std::vector<Tensor> found;
  for (const Tensor& tensor : tensors) found.push_back(tensor.variable_data());
  return found;
}

OptionalTensor plain(const OptionalTensor& tensor) {
  return tensor && tensor->defined() ? OptionalTensor(tensor->variable_data()) : std::nullopt;
}

std::tuple<Tensor, Tensor, Tensor, Tensor>
recurrent(const Tensor& input, at::TensorList weights, const Tensor& hx, const OptionalTensor& cx,
          int64_t mode, bool hasBiases, int64_t layers, double dropout, bool train,
          bool bidirectional, bool batchFirst, int64_t reserveBytes, at::IntArrayRef /*offsets*/,
          int64_t /*flat*/) {
  const Settings settings{mode, hasBiases, layers, dropout, train, bidirectional, batchFirst};
  const c10::DeviceGuard device(input.device());
  if (reserveBytes == 0) {  // no backward follows, or one that fails
    auto [output, hy, cy] = byEager(input, plain(weights), hx, cx, settings);
    return {output, hy, cy, at::empty({0}, input.options().dtype(at::kByte))};
  }
  const Tensor x = input.variable_data();
  const std::vector<Tensor> given = plain(weights);
  const OptionalTensor cell = plain(cx);
  const Tensor hidden = hx.variable_data();
  const Differentiating guards;
  x.requires_grad_(true);
  const auto [output, hy, cy] = byEager(x, given, hidden, cell, settings);
  const auto saved = torch_private::savedByRecurrent(output);
  TORCH_CHECK(
      saved.reserve.defined(),
      "gravure::recurrent: cuDNN did not compute this, which it did when it was traced; was "
      "torch.backends.cudnn.enabled set to False?");
  if (saved.dropoutState.defined())
    DropoutStates::all().keep(saved.dropoutState, input.get_device());
  return {output.variable_data(), hy.variable_data(), cy.variable_data(),
          saved.reserve.variable_data()};
}

/// The weights as cuDNN has them, in one buffer: their own memory where they lie so.
Tensor inOneBuffer(at::TensorList weights, at::IntArrayRef offsets, int64_t flat) {
  TORCH_CHECK(!weights.empty() && weights.size() == offsets.size(),
              "gravure::recurrent_backward: ", weights.size(), " weights and ", offsets.size(),
              " offsets");
  const Tensor& first = weights[0];
  const auto bytes = static_cast<size_t>(flat) * first.element_size();
  bool lies = first.storage().nbytes() >= bytes;
  for (const auto i : c10::irange(weights.size())) {
    const Tensor& weight = weights[i];
    lies = lies && weight.is_alias_of(first) && weight.storage_offset() == offsets[i] &&
           weight.is_contiguous();
  }
  if (lies) return at::empty({0}, first.options()).set_(first.storage(), 0, {flat}, {1});
  Tensor buffer = at::zeros({flat}, first.options());
  for (const auto i : c10::irange(weights.size())) {
    const Tensor part = buffer.narrow(0, offsets[i], weights[i].numel());
    part.view(weights[i].sizes()).copy_(weights[i]);
  }
  return buffer;
}

enum class Reserve { Kept, Donated };

/// Gradients of the input, `hx` and `cx` (empty but for an LSTM), and where `of_weights`, of each weight.
/// Every one has memory of its own: cuDNN's are parts of one buffer.
template <Reserve kReserve>
std::vector<Tensor> recurrentBackward(const Tensor& input, at::TensorList weights, const Tensor& hx,
                                      const OptionalTensor& cx, const Tensor& output,
                                      const Tensor& reserve, const OptionalTensor& ofOutput,
                                      const OptionalTensor& ofHy, const OptionalTensor& ofCy,
                                      int64_t mode, bool hasBiases, int64_t layers, double dropout,
                                      bool bidirectional, bool batchFirst, at::IntArrayRef offsets,
                                      int64_t flat, bool ofWeights) {
  // As eager says it, in whose words: a forward in evaluation leaves nothing.
  TORCH_CHECK(reserve.numel() > 0, "cudnn RNN backward can only be called in training mode");
  const c10::DeviceGuard device(input.device());
  const bool lstm = mode == Lstm;
  const int64_t width = lstm ? cx->size(2) : hx.size(2);
  const int64_t projected = width != hx.size(2) ? hx.size(2) : 0;
  const int64_t aLayer = (hasBiases ? 4 : 2) + (projected ? 1 : 0);
  const Tensor state = DropoutStates::all().of(input.get_device());
  const Tensor scratch = kReserve == Reserve::Donated ? reserve : reserve.clone();
  auto [ofInput, ofHx, ofCx, parts] = at::_cudnn_rnn_backward(
      input, weights, aLayer, inOneBuffer(weights, offsets, flat), hx, lstm ? cx : OptionalTensor(),
      output, ofOutput, ofHy, ofCy, mode, width, projected, layers, batchFirst, dropout,
      /*train=*/true, bidirectional, /*batch_sizes=*/{},
      state.defined() ? OptionalTensor(state) : std::nullopt, scratch,
      {true, true, lstm, ofWeights});
  std::vector<Tensor> found{ofInput, ofHx, lstm ? ofCx : at::empty({0}, hx.options())};
  for (const Tensor& part : parts) found.push_back(part.clone(at::MemoryFormat::Contiguous));
  return found;
}

/// Never destroyed: a Library takes its operators along.
torch::Library* define() {
  auto* library =
      new torch::Library(torch::Library::FRAGMENT, "gravure", std::nullopt, __FILE__, __LINE__);
  library->def(
      "recurrent(Tensor input, Tensor[] weights, Tensor hx, Tensor? cx, int mode, bool has_biases, "
      "int num_layers, float dropout, bool train, bool bidirectional, bool batch_first, "
      "int reserve_bytes, int[] offsets, int flat) -> (Tensor, Tensor, Tensor, Tensor)",
      {at::Tag::nondeterministic_seeded});
  library->def(
      "recurrent_backward(Tensor input, Tensor[] weights, Tensor hx, Tensor? cx, Tensor output, "
      "Tensor reserve, Tensor? grad_output, Tensor? grad_hy, Tensor? grad_cy, int mode, "
      "bool has_biases, int num_layers, float dropout, bool bidirectional, bool batch_first, "
      "int[] offsets, int flat, bool of_weights) -> Tensor[]");
  library->def(
      "recurrent_backward_donated(Tensor input, Tensor[] weights, Tensor hx, Tensor? cx, "
      "Tensor output, Tensor(a!) reserve, Tensor? grad_output, Tensor? grad_hy, Tensor? grad_cy, "
      "int mode, bool has_biases, int num_layers, float dropout, bool bidirectional, "
      "bool batch_first, int[] offsets, int flat, bool of_weights) -> Tensor[]");
  const auto on = [](auto* kernel) { return torch::dispatch(c10::DispatchKey::CUDA, kernel); };
  library->impl("recurrent", on(recurrent));
  library->impl("recurrent_backward", on(recurrentBackward<Reserve::Kept>));
  library->impl("recurrent_backward_donated", on(recurrentBackward<Reserve::Donated>));
  return library;
}

[[maybe_unused]] const torch::Library* const defined = define();

}  // namespace

namespace {

enum class Half { None, Forward, Backward };

Half halfOf(const Node* node) {
  static const c10::Symbol forward = c10::Symbol::fromQualString("gravure::recurrent");
  static const c10::Symbol backward = c10::Symbol::fromQualString("gravure::recurrent_backward");
  if (node->kind() == forward) return Half::Forward;
  return node->kind() == backward || isDonatedReserve(node) ? Half::Backward : Half::None;
}

}  // namespace

bool isDonatedReserve(const Node* node) {
  static const c10::Symbol kind =
      c10::Symbol::fromQualString("gravure::recurrent_backward_donated");
  return node->kind() == kind;
}

int64_t recurrentCalls(const Node* node) {
  if (halfOf(node) == Half::None) return 0;
  const c10::IValue layers = constantArgument(node, *factsOf(node).schema, "num_layers");
  return 2 * (layers.isInt() ? std::max<int64_t>(layers.toInt(), 1) : 1);
}

bool usesCudnnDropout(const Node* node) {
  const Half half = halfOf(node);
  if (half == Half::Forward) return drawsRandom(node);
  if (half == Half::None) return false;
  const c10::IValue rate = constantArgument(node, *factsOf(node).schema, "dropout");
  return !(rate.isDouble() && rate.toDouble() == 0.0);
}

}  // namespace gravure
