#pragma once
// A program on a GPU, captured and uncaptured beside each other.

#include "tests/cuda/gpu.h"

#include "ir/text/program_text.h"
#include "passes/pass.h"
#include "runtime/runtime.h"

namespace gravure::test {

inline const char* const kLinear = R"(gravure 1
graph step(%w : Float(64, 64, strides=[64, 1], device=cuda:0) {parameter "w"},
           %x : Float(32, 64, strides=[64, 1], device=cuda:0) {user_input "x"}):
  %wt : Float(64, 64, strides=[1, 64], device=cuda:0) = aten::t(%w)
  %y : Float(32, 64, strides=[64, 1], device=cuda:0) = aten::mm(%x, %wt)
  %r : Float(32, 64, strides=[64, 1], device=cuda:0) = aten::relu(%y)
  %rt : Float(64, 32, strides=[1, 64], device=cuda:0) = aten::t(%r)
  %g : Float(64, 64, strides=[64, 1], device=cuda:0) = aten::mm(%rt, %x)
  %loss : Float(device=cuda:0) = aten::sum(%r)
  return (%loss {loss}, %g {gradient "w"}, %r {output "r"})
)";

/// Six intermediates of 64 MiB, and a gradient of 64 MiB.
inline const char* const kLarge = R"(gravure 1
graph step(%w : Float(4096, 4096, strides=[4096, 1], device=cuda:0) {parameter "w"},
           %x : Float(4096, 4096, strides=[4096, 1], device=cuda:0) {user_input "x"}):
  %a : Float(4096, 4096, strides=[4096, 1], device=cuda:0) = aten::mul.Tensor(%x, %w)
  %b : Float(4096, 4096, strides=[4096, 1], device=cuda:0) = aten::relu(%a)
  %c : Float(4096, 4096, strides=[4096, 1], device=cuda:0) = aten::mul.Tensor(%b, %a)
  %d : Float(4096, 4096, strides=[4096, 1], device=cuda:0) = aten::mul.Tensor(%c, %b)
  %e : Float(4096, 4096, strides=[4096, 1], device=cuda:0) = aten::mul.Tensor(%d, %c)
  %f : Float(4096, 4096, strides=[4096, 1], device=cuda:0) = aten::mul.Tensor(%e, %d)
  %g : Float(4096, 4096, strides=[4096, 1], device=cuda:0) = aten::add.Tensor(%f, %a)
  %loss : Float(device=cuda:0) = aten::sum(%g)
  return (%loss {loss}, %g {gradient "w"})
)";

inline std::unique_ptr<Runtime> loadWith(const std::string& text, RuntimeOptions options,
                                         c10::DeviceIndex index = 0, bool accumulate = false) {
  auto device = std::make_unique<CudaDevice>(index);
  Program program = readProgram(text);
  PassContext context;
  context.options.alignment = device->alignment();
  context.options.accumulateGradients = accumulate;
  runPasses(program, context);
  return std::make_unique<Runtime>(std::move(program), std::move(device), std::move(options));
}

inline std::unique_ptr<Runtime> load(const std::string& text, bool uncaptured,
                                     ResultPolicy results = ResultPolicy::Owned) {
  RuntimeOptions options;
  options.uncaptured = uncaptured;
  options.results = results;
  return loadWith(text, std::move(options));
}

struct Pair {
  explicit Pair(const std::string& text, std::vector<int64_t> sizes = {32, 64},
                ResultPolicy policy = ResultPolicy::Owned)
      : xSizes(std::move(sizes)), weight(values({xSizes[1], xSizes[1]}, 99)),
        captured(load(text, false, policy)), reference(load(text, true)) {}

  /// One step on both, on new data and with the same random state. What differs first, or "".
  std::string step(uint64_t number) {
    const at::Tensor x = values(xSizes, number);
    const at::Tensor kept = x.clone();
    seed(1000 + number);
    results.clear();
    results = run(*captured, x);
    const at::Tensor after = eagerDraw();
    seed(1000 + number);
    const auto expected = run(*reference, x);
    if (!sameBits(eagerDraw(), after)) return "the generator was left in different states";
    if (!sameBits(x, kept)) return "the caller's input was written";
    for (size_t i = 0; i < expected.size(); ++i) {
      if (!sameBits(results[i].toTensor(), expected[i].toTensor())) {
        return "output " + std::to_string(i) + " in step " + std::to_string(number);
      }
    }
    return "";
  }

  std::vector<c10::IValue> run(Runtime& runtime, const at::Tensor& x) {
    std::vector<c10::IValue> inputs{weight, x};
    inputs.resize(runtime.program().entries[0].inputs.size());  // default generators: None
    return runtime.run("step", std::move(inputs));
  }

  std::vector<int64_t> xSizes;
  at::Tensor weight;
  std::unique_ptr<Runtime> captured;
  std::unique_ptr<Runtime> reference;
  std::vector<c10::IValue> results;
};

}  // namespace gravure::test
