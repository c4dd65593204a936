#include "runtime/rng.h"

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

void setState(at::Generator generator, const at::Tensor& state) {
  std::lock_guard<std::mutex> lock(generator.mutex());
  generator.set_state(state);
}

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
    shared_ = default_.graphsafe_get_state();
    default_.graphsafe_set_state(paired_);
    return;
  }
  kept_ = stateOf(default_);
  setState(default_, stateOf(paired_));
}

RngScope::~RngScope() {
  if (!default_.defined()) return;
  if (shared_.defined()) {
    default_.graphsafe_set_state(shared_);
    return;
  }
  if (paired_.defined()) setState(paired_, stateOf(default_));
  setState(default_, kept_);
}

}  // namespace gravure
