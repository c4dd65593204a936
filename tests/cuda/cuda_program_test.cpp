// Whole programs on a GPU, through the passes and the runtime: captured equals uncaptured in bits.

#include "tests/cuda/gpu.h"

#include "ir/program_text.h"
#include "passes/pass.h"
#include "runtime/runtime.h"

#include <c10/cuda/CUDAGuard.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

using namespace gravure;
using namespace gravure::test;

namespace {

/// Captures must refuse it, and nothing in its schema says so.
at::Tensor readsInside(const at::Tensor& x) { return x + x.sum().item(); }

const char* const kLinear = R"(gravure 1
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

const char* const kDropout = R"(gravure 1
graph step(%w : Float(64, 64, strides=[64, 1], device=cuda:0) {parameter "w"},
           %x : Float(32, 64, strides=[64, 1], device=cuda:0) {user_input "x"}):
  %y : Float(32, 64, strides=[64, 1], device=cuda:0) = aten::mm(%x, %w)
  %d : Float(32, 64, strides=[64, 1], device=cuda:0), %m : Bool(32, 64, strides=[64, 1], device=cuda:0) = aten::native_dropout(%y, 0.25, True)
  %z : Float(32, 64, strides=[64, 1], device=cuda:0) = aten::mm(%d, %w)
  %e : Float(32, 64, strides=[64, 1], device=cuda:0), %n : Bool(32, 64, strides=[64, 1], device=cuda:0) = aten::native_dropout(%z, 0.25, True)
  %loss : Float(device=cuda:0) = aten::sum(%e)
  return (%loss {loss}, %e {output "e"}, %m {output "m"})
)";

const char* const kReadsInside = R"(gravure 1
graph step(%w : Float(64, 64, strides=[64, 1], device=cuda:0) {parameter "w"},
           %x : Float(32, 64, strides=[64, 1], device=cuda:0) {user_input "x"}):
  %y : Float(32, 64, strides=[64, 1], device=cuda:0) = aten::mm(%x, %w)
  %d : Float(32, 64, strides=[64, 1], device=cuda:0), %m : Bool(32, 64, strides=[64, 1], device=cuda:0) = aten::native_dropout(%y, 0.25, True)
  %s : Float(32, 64, strides=[64, 1], device=cuda:0) = gravure_test::reads_inside(%d)
  %loss : Float(device=cuda:0) = aten::sum(%s)
  return (%loss {loss}, %s {output "s"})
)";

/// A number read on the host cuts the step in two.
const char* const kHostRead = R"(gravure 1
graph step(%w : Float(64, 64, strides=[64, 1], device=cuda:0) {parameter "w"},
           %x : Float(32, 64, strides=[64, 1], device=cuda:0) {user_input "x"}):
  %y : Float(32, 64, strides=[64, 1], device=cuda:0) = aten::mm(%x, %w)
  %r : Float(32, 64, strides=[64, 1], device=cuda:0) = aten::relu(%y)
  %sum : Float(device=cuda:0) = aten::sum(%r)
  %item : float = aten::_local_scalar_dense(%sum)
  %scaled : Float(32, 64, strides=[64, 1], device=cuda:0) = aten::mul.Scalar(%r, %item)
  %z : Float(32, 64, strides=[64, 1], device=cuda:0) = aten::mm(%scaled, %w)
  %q : Float(32, 64, strides=[64, 1], device=cuda:0) = aten::relu(%z)
  %loss : Float(device=cuda:0) = aten::sum(%q)
  return (%loss {loss}, %q {output "q"})
)";

std::unique_ptr<Runtime> load(const char* text, bool uncaptured) {
  auto device = std::make_unique<CudaDevice>(0);
  Program program = readProgram(text);
  PassContext context;
  context.options.alignment = device->alignment();
  runPasses(program, context);
  RuntimeOptions options;
  options.uncaptured = uncaptured;
  return std::make_unique<Runtime>(std::move(program), std::move(device), options);
}

struct Pair {
  explicit Pair(const char* text) : captured(load(text, false)), reference(load(text, true)) {}

  /// One step on both, on new data and with the same random state. What differs first, or "".
  std::string step(uint64_t number) {
    const at::Tensor x = values({32, 64}, number);
    const at::Tensor kept = x.clone();
    seed(1000 + number);
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

  at::Tensor weight = values({64, 64}, 99);
  std::unique_ptr<Runtime> captured;
  std::unique_ptr<Runtime> reference;
  std::vector<c10::IValue> results;
};

size_t count(const Pair& pair, PartitionState state) {
  size_t found = 0;
  for (PartitionState each : pair.captured->partitionStates("step")) found += each == state;
  return found;
}

}  // namespace

TORCH_LIBRARY(gravure_test, m) { m.def("reads_inside(Tensor x) -> Tensor"); }
TORCH_LIBRARY_IMPL(gravure_test, CUDA, m) { m.impl("reads_inside", readsInside); }

TEST_CASE("law 1: a program gives the bits of the uncaptured one, on new data each step") {
  NEEDS_GPU();
  for (const char* text : {kLinear, kDropout, kHostRead}) {
    CAPTURE(text);
    Pair pair(text);
    for (uint64_t step = 0; step < 10; ++step) CHECK(pair.step(step) == "");
    CHECK(count(pair, PartitionState::Captured) == pair.captured->partitionStates("step").size());
    CHECK(pair.captured->stats().replays > 0);
  }
}

TEST_CASE("law 1: dropout between eager draws, without a new seed each step") {
  NEEDS_GPU();
  Pair pair(kDropout);
  std::vector<at::Tensor> drawn[2];
  for (const bool reference : {true, false}) {
    seed(4);
    for (uint64_t step = 0; step < 10; ++step) {
      const auto results =
          pair.run(reference ? *pair.reference : *pair.captured, values({32, 64}, step));
      for (const c10::IValue& result : results) drawn[reference].push_back(result.toTensor());
      if (step % 2 == 1) drawn[reference].push_back(eagerDraw());
    }
  }
  REQUIRE(drawn[0].size() == drawn[1].size());
  for (size_t i = 0; i < drawn[0].size(); ++i) CHECK(sameBits(drawn[0][i], drawn[1][i]));
}

TEST_CASE("law 6: a partition that cannot be captured is quarantined, and training goes on") {
  NEEDS_GPU();
  Pair pair(kReadsInside);
  for (uint64_t step = 0; step < 8; ++step) CHECK(pair.step(step) == "");
  CHECK(count(pair, PartitionState::Quarantined) == 1);
  CHECK(pair.captured->stats().captures == 0);
  CHECK_FALSE(pair.captured->remarks().all().empty());
}

TEST_CASE("law 6: an injected fault costs a step its graph, not its bits") {
  NEEDS_GPU();
  for (const char* text : {kDropout, kHostRead}) {
    for (int point = 0; point < 5; ++point) {
      for (const int64_t countdown : {1, 2}) {
        CAPTURE(text, point, countdown);
        Pair pair(text);
        pair.captured->device().injectFault(static_cast<FaultPoint>(point), countdown);
        for (uint64_t step = 0; step < 8; ++step) CHECK(pair.step(step) == "");
      }
    }
  }
}

TEST_CASE("law 5: results outlive later steps and the runtime") {
  NEEDS_GPU();
  Pair pair(kDropout);
  for (uint64_t step = 0; step < 6; ++step) CHECK(pair.step(step) == "");
  std::vector<at::Tensor> held, copies;
  for (const c10::IValue& result : pair.results) {
    held.push_back(result.toTensor());
    copies.push_back(held.back().clone());
  }
  for (uint64_t step = 6; step < 9; ++step) CHECK(pair.step(step) == "");
  pair.captured.reset();
  c10::cuda::CUDACachingAllocator::emptyCache();
  (void)at::full({1 << 22}, 5.0, at::TensorOptions(kGpu));
  for (size_t i = 0; i < held.size(); ++i) CHECK(sameBits(held[i], copies[i]));
}

TEST_CASE("steps move from stream to stream") {
  NEEDS_GPU();
  Pair pair(kDropout);
  for (uint64_t step = 0; step < 12; ++step) {
    const auto stream =
        step % 3 == 0 ? c10::cuda::getDefaultCUDAStream(0) : c10::cuda::getStreamFromPool(false, 0);
    c10::cuda::CUDAStreamGuard guard(stream);
    CHECK(pair.step(step) == "");
    pair.captured->device().synchronize();
  }
}
