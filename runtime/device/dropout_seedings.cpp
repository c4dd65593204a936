#include "runtime/device/dropout_seedings.h"

#include <ATen/ops/_cudnn_init_dropout_state.h>
#include <c10/core/TensorOptions.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include <atomic>

namespace gravure {
namespace {

std::atomic<int64_t> seedings{0};

/// As PyTorch's own function for this key, which picks the device; every call comes through it.
at::Tensor countedState(double dropout, bool train, int64_t seed,
                        std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                        std::optional<at::Device> device, std::optional<bool> pinned) {
  seedings.fetch_add(1, std::memory_order_relaxed);
  const c10::DispatchKeySet key(c10::computeDispatchKey(dtype, layout, device));
  return at::_ops::_cudnn_init_dropout_state::redispatch(key, dropout, train, seed, dtype, layout,
                                                         device, pinned);
}

struct Silent final : c10::WarningHandler {
  void process(const c10::Warning&) override {}
};

/// Never destroyed: a Library takes its functions along.
torch::Library* count() {
  Silent silent;  // PyTorch warns of each function that takes another one's place
  const c10::WarningUtils::WarningHandlerGuard guard(&silent);
  auto* library = new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::BackendSelect,
                                     __FILE__, __LINE__);
  library->impl("_cudnn_init_dropout_state", TORCH_FN(countedState));
  return library;
}

[[maybe_unused]] const torch::Library* const counted = count();

}  // namespace

int64_t dropoutSeedings() { return seedings.load(std::memory_order_relaxed); }

}  // namespace gravure
