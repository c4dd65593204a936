// Programs that were exported on a GPU, through all passes, on the host device.
#include "passes/pass.h"
#include "runtime/program/inputs_file.h"
#include "tests/unit/runtime_fixture.h"

#include <map>

using namespace gravure;

namespace {

const DeviceMap kToHost{c10::Device(c10::kCUDA, 0), c10::Device(c10::kCPU)};

/// One runtime with inputs and random states of its own; saved values go from entry to entry.
class Side {
 public:
  Side(const std::string& folder, Program program, RuntimeOptions options)
      : runtime_(std::move(program), makeHostDevice(), std::move(options)) {
    const InputsFile file = InputsFile::read(folder + "/inputs.pt");
    const Program original = readProgramFile(folder + "/program.gv");
    for (const Entry& entry : original.entries) inputs_[entry.name] = file.bind(entry, kToHost);
  }

  /// All entries once; `data` is put in the place of each user input.
  std::vector<c10::IValue> step(uint64_t seed) {
    std::vector<c10::IValue> results;
    std::map<std::string, c10::IValue> saved;
    for (const Entry& entry : runtime_.program().entries) {
      std::vector<c10::IValue> inputs = inputs_.at(entry.name);
      inputs.resize(entry.inputs.size());  // default generators, which passes have added
      at::Generator data = at::detail::createCPUGenerator(seed);
      for (size_t i = 0; i < inputs.size(); ++i) {
        const InputInfo& info = entry.inputs[i];
        if (info.role == InputRole::Saved) inputs[i] = saved.at(info.name);
        if (info.role == InputRole::UserInput && inputs[i].toTensor().is_floating_point()) {
          inputs[i] = at::randn(inputs[i].toTensor().sizes(), data);
        }
      }
      const auto outputs = runtime_.run(entry.name, std::move(inputs));
      for (size_t o = 0; o < outputs.size(); ++o) {
        if (entry.outputs[o].role == OutputRole::Saved) {
          saved[entry.outputs[o].name] = outputs[o];
        } else {
          results.push_back(outputs[o]);
        }
      }
    }
    return results;
  }
  Runtime& runtime() { return runtime_; }

 private:
  Runtime runtime_;
  std::map<std::string, std::vector<c10::IValue>> inputs_;
};

}  // namespace

TEST_CASE("programs exported on a GPU run on the host device, in bits", "[law1]") {
  const std::string name =
      GENERATE("cuda_checkpointed/step", "cuda_checkpointed/joint",
               "cuda_checkpointed_eager_rng/step", "cuda_checkpointed_eager_rng/joint");
  CAPTURE(name);
  const std::string folder = "tests/programs/" + name;
  PassContext passes;
  Program program = readProgramFile(folder + "/program.gv");
  runPasses(program, passes);
  RuntimeOptions uncaptured;
  uncaptured.uncaptured = true;
  Side captured(folder, std::move(program), {});
  Side reference(folder, readProgramFile(folder + "/program.gv"), uncaptured);
  at::manual_seed(11);
  for (uint64_t step = 0; step < 6; ++step) {
    CAPTURE(step);
    const at::Tensor state = rngState();
    const auto expected = reference.step(step);
    const at::Tensor after = rngState();
    setRngState(state);
    CHECK(sameBits(captured.step(step), expected));
    CHECK(sameBits(rngState(), after));
  }
  CHECK(captured.runtime().stats().replays > 0);
  INFO(remarksOf(captured.runtime()));
  CHECK(captured.runtime().remarks().count("capture-failed") == 0);
  CHECK(captured.runtime().remarks().count("guard-failed") == 0);
}

// What a vocabulary-parallel embedding makes: a CPU constant, made anew by a host node each step, fills
// masked places of a CUDA tensor.
TEST_CASE("a CPU constant without dimensions is a number to a partition, wherever it lies",
          "[law3]") {
  const char* const text = R"(gravure 1
graph step(%x : Float(4, strides=[1], device=cuda:0) {parameter "x"},
           %c : Float(device=cpu) {constant "c"}):
  %k : Float(device=cpu) = aten::lift_fresh_copy(%c)
  %m : Bool(4, strides=[1], device=cuda:0) = aten::lt.Scalar(%x, 0)
  %y : Float(4, strides=[1], device=cuda:0) = aten::masked_fill.Tensor(%x, %m, %k)
  %z : Float(4, strides=[1], device=cuda:0) = aten::mul.Tensor(%y, %c)
  return (%z {output "z"})
)";
  PassContext passes;
  Program program = readProgram(text);
  runPasses(program, passes);
  Runtime runtime(std::move(program), makeHostDevice());
  const at::Tensor x = at::tensor({-1.0f, 2.0f, -3.0f, 4.0f});
  std::vector<at::Tensor> kept;  // so that no constant lies where another one did
  const auto step = [&](float c) {
    kept.push_back(at::scalar_tensor(c));
    return runtime.run("step", {x, kept.back()})[0].toTensor();
  };
  const auto expected = [&](float c) { return x.masked_fill(x < 0, c) * c; };
  for (int i = 0; i < 5; ++i) CHECK(sameBits(step(7), expected(7)));
  INFO(remarksOf(runtime));
  CHECK(countIn(runtime, PartitionState::Captured) == 1);
  CHECK(runtime.stats().replays >= 2);
  // A constant is not to change; if it does, what was captured with the old one is not replayed.
  CHECK(sameBits(step(8), expected(8)));
  CHECK(runtime.remarks().count("guard-failed") == 1);
  CHECK(sameBits(step(7), expected(7)));
}
