#include "tools/gravure/run/side.h"

#include "tools/gravure/command/command.h"

#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <ATen/ops/equal.h>

#include <mutex>

namespace gravure::tool {

std::unique_ptr<Device> makeDevice(const std::string& name) {
  if (name == "host") return makeHostDevice();
  llvm::StringRef rest = name;
  unsigned index = 0;
  const bool cuda = rest.consume_front("cuda") &&
                    (rest.empty() || (rest.consume_front(":") && !rest.getAsInteger(10, index)));
  if (!cuda || index > 127) {
    throw UsageError("--device: '" + name + "' is neither host nor cuda nor cuda:N");
  }
#ifdef GRAVURE_HAS_CUDA
  return makeCudaDevice(static_cast<c10::DeviceIndex>(index));
#else
  throw UsageError("--device: this gravure was built without CUDA");
#endif
}

Side::Side(const ProgramFile& loaded, const Program& emitted, std::unique_ptr<Device> device,
           RuntimeOptions options, uint64_t seed)
    : runtime_(emitted.clone(), std::move(device), options),
      inputs_(loaded, runtime_.device().tensorDevice(), seed) {}

void Side::run(const Entry& entry) {
  current_ = inputs_.inputsOf(entry);
  outputs_ = runtime_.run(entry.name, current_);
  inputs_.keepSaved(entry, outputs_);
}

void Side::dropResults() {
  outputs_.clear();
  current_.clear();
  inputs_.dropSaved();
}

void Side::flipBit() {
  for (c10::IValue& output : outputs_) {
    if (!output.isTensor() || output.toTensor().numel() == 0) continue;
    at::Tensor copy = output.toTensor().clone();
    copy.flatten().unsqueeze(-1).view(at::kByte)[-1][0].bitwise_xor_(1);
    output = copy;
    return;
  }
}

GeneratorStates::GeneratorStates(c10::Device device) {
  std::vector<c10::Device> devices{at::kCPU};
  if (!device.is_cpu()) devices.push_back(device);
  for (c10::Device each : devices) {
    at::Generator generator = at::globalContext().defaultGenerator(each);
    std::lock_guard<std::mutex> lock(generator.mutex());
    states_.emplace_back(each, generator.get_state());
  }
}

void GeneratorStates::restore() const {
  for (const auto& [device, state] : states_) {
    at::Generator generator = at::globalContext().defaultGenerator(device);
    std::lock_guard<std::mutex> lock(generator.mutex());
    generator.set_state(state);
  }
}

std::string GeneratorStates::firstDifference(const GeneratorStates& other) const {
  for (size_t i = 0; i < states_.size(); ++i) {
    if (!at::equal(states_[i].second, other.states_[i].second)) {
      return "the default generator of " + states_[i].first.str();
    }
  }
  return "";
}

}  // namespace gravure::tool
