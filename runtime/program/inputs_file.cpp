#include "runtime/program/inputs_file.h"

#include "ir/facts/value_types.h"
#include "runtime/program/guards.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <torch/csrc/jit/serialization/pickle.h>

#include <filesystem>
#include <fstream>

namespace gravure {
namespace {

std::vector<char> readBytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  TORCH_CHECK(file && !std::filesystem::is_directory(path), "cannot open the inputs file ", path,
              "; export_step writes it beside the program");
  std::vector<char> bytes(static_cast<size_t>(file.tellg()));
  file.seekg(0);
  file.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  TORCH_CHECK(file, "cannot read the inputs file ", path);
  return bytes;
}

c10::IValue unpickle(const std::string& path) {
  const std::vector<char> bytes = readBytes(path);
  try {
    return torch::jit::pickle_load(bytes);
  } catch (const std::exception& error) {
    const auto* ours = dynamic_cast<const c10::Error*>(&error);
    const std::string reason = ours ? ours->what_without_backtrace() : error.what();
    // libtorch's first sentence; the rest is advice on checkpoints.
    TORCH_CHECK(false, "the inputs file ", path, " is damaged or was not written by torch.save: ",
                reason.substr(0, std::min(reason.find('\n'), reason.find(". "))));
  }
}

std::map<std::string, c10::IValue> namedValues(const c10::IValue& value, const std::string& path,
                                               const std::string& what) {
  TORCH_CHECK(value.isGenericDict(), "the inputs file ", path, ": ", what, " is no dict");
  std::map<std::string, c10::IValue> named;
  for (const auto& item : value.toGenericDict()) {
    TORCH_CHECK(item.key().isString(), "the inputs file ", path, ": ", what,
                " has a key that is no string");
    named[item.key().toStringRef()] = item.value();
  }
  return named;
}

/// "cuda:0" is that device's default generator; "cuda:0#1" a generator of its own, and so is
/// "cuda:0#1/backward", which begins in the same state.
c10::IValue generatorFor(const InputInfo& info, const c10::IValue* saved,
                         const DeviceMap& devices) {
  const size_t mark = info.name.find('#');
  if (mark == std::string::npos) return {};
  const uint64_t seed = std::strtoull(info.name.c_str() + mark + 1, nullptr, 10);
  // A saved state is of the device of the export.
  if (devices.to.is_cpu()) return at::Generator(at::detail::createCPUGenerator(seed));
  at::Generator generator = at::globalContext()
                                .getAcceleratorHooksInterface(devices.to.type())
                                .getNewGenerator(devices.to.index());
  generator.set_current_seed(seed);
  if (saved && saved->isTensor() && devices.from == devices.to)
    generator.set_state(saved->toTensor());
  return generator;
}

}  // namespace

InputsFile InputsFile::read(const std::string& path) {
  InputsFile file;
  file.path_ = path;
  for (const auto& [entry, inputs] : namedValues(unpickle(path), path, "its content")) {
    file.entries_[entry] = namedValues(inputs, path, "entry '" + entry + "'");
  }
  return file;
}

std::vector<c10::IValue> InputsFile::bind(const Entry& entry, const DeviceMap& devices) const {
  const auto known = entries_.find(entry.name);
  TORCH_CHECK(known != entries_.end(), "the inputs file ", path_, " has no entry '", entry.name,
              "'");
  std::vector<c10::IValue> values;
  for (size_t i = 0; i < entry.inputs.size(); ++i) {
    const Value* input = entry.graph->inputs()[i];
    const InputInfo& info = entry.inputs[i];
    const auto at = known->second.find(info.name.empty() ? input->debugName() : info.name);
    const c10::IValue* saved = at == known->second.end() ? nullptr : &at->second;
    if (info.role == InputRole::RngState) {
      values.push_back(generatorFor(info, saved, devices));
      continue;
    }
    if (!saved && info.role == InputRole::Saved) {
      values.emplace_back();
      continue;
    }
    TORCH_CHECK(saved, "the inputs file ", path_, " lacks ", inputName(entry, i));
    c10::IValue value = *saved;
    const auto device = deviceOf(input);
    if (value.isTensor() && device) value = value.toTensor().to(devices(*device));
    values.push_back(std::move(value));
  }
  return values;
}

}  // namespace gravure
