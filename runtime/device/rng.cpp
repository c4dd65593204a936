#include "runtime/device/rng.h"

#include <ATen/Context.h>

#include <mutex>

namespace gravure {

at::Generator defaultGenerator(c10::Device device) {
  return at::globalContext().defaultGenerator(device);
}

at::Tensor stateOf(at::Generator generator) {
  std::lock_guard<std::mutex> lock(generator.mutex());
  return generator.get_state();
}

// A CPU generator reads the state from where the tensor's storage begins, wherever the tensor does: of a
// part of a storage it would take what lies before it, and draw by numbers that are no state.
void setState(at::Generator generator, const at::Tensor& state) {
  const at::Tensor whole = state.storage_offset() == 0 ? state : state.clone();
  std::lock_guard<std::mutex> lock(generator.mutex());
  generator.set_state(whole);
}

namespace {

/// Puts `next`'s state in the place of that of `generator`; another generator with the former one.
at::Generator exchangeState(at::Generator& generator, const at::Generator& next) {
  const std::lock_guard<std::mutex> lock(generator.mutex());
  at::Generator former = generator.graphsafe_get_state();
  generator.graphsafe_set_state(next);
  return former;
}

}  // namespace

RngScope::RngScope(c10::Device device, const c10::IValue& rng) {
  if (rng.isNone()) return;
  const at::Generator generator = defaultGenerator(device);
  if (rng.isTensor()) {
    kept_ = stateOf(generator);
    default_ = generator;
    setState(default_, rng.toTensor());
    return;
  }
  paired_ = rng.toGenerator();
  if (paired_ == generator) {
    paired_ = at::Generator();
    return;
  }
  TORCH_CHECK(paired_.device().type() == device.type(), "a random state of ", paired_.device(),
              " given to a call on ", device, "; pass a generator of that device");
  default_ = generator;
  if (device.is_cuda()) {
    shared_ = exchangeState(default_, paired_);
    return;
  }
  kept_ = stateOf(default_);
  setState(default_, stateOf(paired_));
}

RngScope::~RngScope() {
  try {
    try {
      putBack();
    } catch (const std::exception& error) {  // as where the GPU is lost
      TORCH_WARN("the random state of ", default_.device(), " was not put back: ", error.what());
    }
  } catch (...) {  // where warnings are errors: a destructor has nowhere to throw to
  }
}

void RngScope::putBack() {
  if (!default_.defined()) return;
  if (shared_.defined()) {
    (void)exchangeState(default_, shared_);
    return;
  }
  if (paired_.defined()) setState(paired_, stateOf(default_));
  setState(default_, kept_);
}

}  // namespace gravure
