#include "tools/gravure/run/step_inputs.h"

#include "ir/core/same_device.h"
#include "ir/facts/value_types.h"
#include "ir/text/program_text.h"
#include "ir/text/type_printer.h"
#include "tools/gravure/command/command.h"
#include "tools/gravure/proof/draw.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/randn.h>

#include <cstring>

namespace gravure::tool {
namespace {

std::string keyOf(const InputInfo& info, const Value* value) {
  const std::string& name = info.name.empty() ? value->debugName() : info.name;
  return std::string(roleName(info.role)) + " " + name;
}

/// `tensor` on `device`, as a tensor of its own; tensors that shared a storage share the copy.
class Copier {
 public:
  at::Tensor copy(const at::Tensor& tensor, c10::Device device) {
    if (tensor.layout() != at::kStrided) return tensor.to(device).clone();
    const auto key = std::make_pair(tensor.storage().unsafeGetStorageImpl(), device.str());
    auto found = copies_.find(key);
    if (found == copies_.end()) {
      const int64_t bytes = static_cast<int64_t>(tensor.storage().nbytes());
      at::Tensor whole = at::empty({0}, tensor.options().dtype(at::kByte));
      whole.set_(tensor.storage(), 0, {bytes}, {1});
      found = copies_.emplace(key, whole.to(device, at::kByte, false, true)).first;
    }
    at::Tensor result = at::empty({0}, tensor.options().device(device));
    result.set_(found->second.storage(), tensor.storage_offset(), tensor.sizes(), tensor.strides());
    return result;
  }

 private:
  std::map<std::pair<c10::StorageImpl*, std::string>, at::Tensor> copies_;
};

/// A generator on `device` in the state that `state` holds. A CUDA state read on the CPU keeps its
/// seed alone.
at::Generator generatorFrom(const at::Tensor& state, c10::Device device) {
  at::Generator fresh = at::globalContext().defaultGenerator(device).clone();
  const bool philox = state.numel() == 16;
  if (philox == device.is_cuda()) {
    fresh.set_state(state);
  } else {
    uint64_t seed = 0;
    std::memcpy(&seed, state.data_ptr(), sizeof(seed));
    fresh.set_current_seed(seed);
  }
  return fresh;
}

}  // namespace

StepInputs::StepInputs(const ProgramFile& loaded, c10::Device device, uint64_t seed)
    : programDevice_(computeDevice(loaded.program)), device_(device), seed_(seed) {
  for (const Entry& entry : loaded.program.entries) {
    for (size_t i = 0; i < entry.inputs.size(); ++i) addSource(entry, i, loaded);
  }
  Copier copier;
  std::map<const c10::StorageImpl*, int> users;
  for (auto& [key, source] : sources_) {
    if (source.original.isTensor() && source.original.toTensor().has_storage()) {
      ++users[source.original.toTensor().storage().unsafeGetStorageImpl()];
    }
  }
  for (auto& [key, source] : sources_) {
    if (!source.original.isTensor()) {
      source.current = source.original;
      continue;
    }
    const at::Tensor& tensor = source.original.toTensor();
    // What shares memory with another input keeps doing so, and its values.
    const bool shared = tensor.has_storage() && users[tensor.storage().unsafeGetStorageImpl()] > 1;
    source.redraw = !shared && tensor.layout() == at::kStrided &&
                    (source.role == InputRole::UserInput || source.role == InputRole::Tangent ||
                     source.role == InputRole::Unspecified);
    source.current = copier.copy(tensor, source.device);
  }
}

c10::IValue StepInputs::originalOf(const Entry& entry, size_t index,
                                   const ProgramFile& loaded) const {
  const InputInfo& info = entry.inputs[index];
  const Value* value = entry.graph->inputs()[index];
  const std::string& name = info.name.empty() ? value->debugName() : info.name;
  if (loaded.inputs) {
    auto values = loaded.inputs->find(entry.name);
    if (values != loaded.inputs->end()) {
      auto found = values->second.find(name);
      if (found != values->second.end()) return found->second;
    }
  }
  if (info.role == InputRole::RngState || value->type()->kind() == c10::TypeKind::GeneratorType) {
    return {};
  }
  auto type = value->type()->cast<c10::TensorType>();
  if (type && type->scalarType() && hasStaticShape(value)) {
    return drawFresh(*type->sizes().concrete_sizes(), *type->strides().concrete_sizes(),
                     *type->scalarType(), mixSeed(seed_, -1, name));
  }
  throw FileError(loaded.file, "input %" + value->debugName() + " of entry '" + entry.name +
                                   "' has no value in inputs.pt, and its type " +
                                   typeText(*value->type()) + " does not say what to draw");
}

void StepInputs::addSource(const Entry& entry, size_t index, const ProgramFile& loaded) {
  const InputInfo& info = entry.inputs[index];
  const Value* value = entry.graph->inputs()[index];
  if (info.role == InputRole::Saved) return;
  const std::string key = keyOf(info, value);
  if (sources_.count(key)) return;
  Source source;
  source.role = info.role;
  source.original = originalOf(entry, index, loaded);
  const auto said = deviceOf(value);
  source.device = !said || sameDevice(*said, programDevice_) ? device_ : *said;
  if (info.role == InputRole::RngState && source.original.isTensor()) {
    source.original = generatorFrom(source.original.toTensor(), device_);
  }
  sources_.emplace(key, std::move(source));
}

void StepInputs::beginStep(int64_t step) {
  saved_.clear();
  for (auto& [key, source] : sources_) {
    if (!source.original.isTensor()) continue;
    const uint64_t seed = mixSeed(seed_, step, key);
    if (source.redraw) {
      const at::Tensor drawn = drawLike(source.original.toTensor().to(at::kCPU), seed);
      source.current = Copier().copy(drawn, source.device);
    } else if (source.role == InputRole::Parameter && step > 0) {
      at::Tensor parameter = source.current.toTensor();
      if (!parameter.is_floating_point()) continue;
      const at::Tensor noise = at::randn(parameter.sizes(), at::detail::createCPUGenerator(seed),
                                         at::TensorOptions(at::kFloat));
      parameter.mul_(noise.mul_(1e-3).add_(1).to(parameter.options()));
    }
  }
}

std::vector<c10::IValue> StepInputs::inputsOf(const Entry& entry) const {
  std::vector<c10::IValue> values;
  values.reserve(entry.inputs.size());
  for (size_t i = 0; i < entry.inputs.size(); ++i) {
    const InputInfo& info = entry.inputs[i];
    const Value* value = entry.graph->inputs()[i];
    if (info.role == InputRole::Saved) {
      auto found = saved_.find(info.name);
      if (found == saved_.end()) {
        throw std::runtime_error("entry '" + entry.name + "' reads the saved value '" + info.name +
                                 "', which no entry before it returns");
      }
      values.push_back(found->second);
      continue;
    }
    auto found = sources_.find(keyOf(info, value));
    // Passes add inputs for default generators: None stands for them.
    values.push_back(found == sources_.end() ? c10::IValue() : found->second.current);
  }
  return values;
}

void StepInputs::keepSaved(const Entry& entry, const std::vector<c10::IValue>& outputs) {
  for (size_t i = 0; i < entry.outputs.size(); ++i) {
    if (entry.outputs[i].role == OutputRole::Saved) saved_[entry.outputs[i].name] = outputs.at(i);
  }
}

}  // namespace gravure::tool
