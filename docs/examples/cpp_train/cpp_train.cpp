// Trains an exported step without Python, and checks its losses against the recorded ones.
//
//   cpp_train FOLDER [host|cuda|cuda:N]
//
// FOLDER holds what docs/examples/cpp_train/export.py writes. Exit status 0 only if every loss has the
// bits that eager PyTorch's had.

#include "ir/check/verify.h"
#include "ir/facts/value_types.h"
#include "ir/text/program_text.h"
#include "passes/pass.h"
#include "runtime/program/inputs_file.h"
#include "runtime/runtime.h"

#include <ATen/Context.h>
#include <ATen/Functions.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <string>
#include <vector>

namespace {

constexpr double kRate = 0.125;  // as in export.py

std::vector<float> readLosses(const std::string& path) {
  std::ifstream file(path);
  TORCH_CHECK(file, path, ": cannot be read; export.py writes it");
  std::vector<float> losses;
  for (std::string line; std::getline(file, line);)
    losses.push_back(std::strtof(line.c_str(), nullptr));
  return losses;
}

std::unique_ptr<gravure::Device> makeDevice(const std::string& name) {
  if (name == "host") return gravure::makeHostDevice(/*poison=*/false);
  const c10::Device device(name);
  TORCH_CHECK(device.is_cuda(), "expected host or cuda, found ", name);
  return gravure::makeCudaDevice(device.has_index() ? device.index() : c10::DeviceIndex{0});
}

/// Position of each gradient's parameter among the inputs, by position of the gradient among the outputs.
std::map<size_t, size_t> parametersOf(const gravure::Entry& entry) {
  std::map<std::string, size_t> parameters;
  for (size_t i = 0; i < entry.inputs.size(); ++i) {
    if (entry.inputs[i].role == gravure::InputRole::Parameter) parameters[entry.inputs[i].name] = i;
  }
  std::map<size_t, size_t> of;
  for (size_t o = 0; o < entry.outputs.size(); ++o) {
    if (entry.outputs[o].role == gravure::OutputRole::Gradient)
      of[o] = parameters.at(entry.outputs[o].name);
  }
  return of;
}

int train(const std::string& folder, const std::string& deviceName) {
  const std::vector<float> expected = readLosses(folder + "/losses.txt");
  gravure::Program program = gravure::readProgramFile(folder + "/program.gv");
  gravure::verifyProgram(program);
  const auto file = gravure::InputsFile::read(folder + "/inputs.pt");
  auto device = makeDevice(deviceName);
  const gravure::DeviceMap devices{gravure::computeDevice(program), device->tensorDevice()};
  std::vector<c10::IValue> inputs = file.bind(program.entries.at(0), devices);

  gravure::PassContext passes;
  passes.options.alignment = device->alignment();
  gravure::runPasses(program, passes);
  gravure::Runtime runtime(std::move(program), std::move(device));
  const gravure::Entry& entry = runtime.program().entries.at(0);
  inputs.resize(entry.inputs.size());  // the passes added a random state: None is the default one
  const auto parameterOf = parametersOf(entry);

  at::manual_seed(7);
  int wrong = 0;
  for (size_t step = 0; step < expected.size(); ++step) {
    const std::vector<c10::IValue> results = runtime.run(entry.name, inputs);
    const float loss = results.at(0).toTensor().item<float>();
    for (auto [gradient, parameter] : parameterOf)
      inputs[parameter].toTensor().sub_(results[gradient].toTensor(), kRate);
    const bool same = std::memcmp(&loss, &expected[step], sizeof(float)) == 0;
    wrong += !same;
    std::printf("step %2zu  loss %.6f  %s\n", step, loss, same ? "eager's bits" : "DIFFERS");
  }
  const gravure::RuntimeStats& stats = runtime.stats();
  std::printf("%ld of %ld steps replayed %ld captured partitions\n",
              static_cast<long>(stats.steps - stats.uncapturedSteps),
              static_cast<long>(stats.steps), static_cast<long>(stats.captures));
  return wrong == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2 || argc > 3) {
    std::fprintf(stderr, "usage: cpp_train FOLDER [host|cuda|cuda:N]\n");
    return 2;
  }
  try {
    return train(argv[1], argc > 2 ? argv[2] : "host");
  } catch (const c10::Error& error) {
    std::fprintf(stderr, "cpp_train: %s\n", error.what_without_backtrace());
    return 2;
  }
}
