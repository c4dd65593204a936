// What captured calls draw from: a state of the graph's own, filled from what the generator is by then.

#include "tests/cuda/gpu.h"

#include "runtime/cuda/cuda_partition_graph.h"

#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/headeronly/version.h>

#include <thread>

using namespace gravure;
using namespace gravure::test;

namespace {

constexpr int64_t kBytes = 64 * 64 * 4;

Call dropped() {
  return callOf(
      [](torch::jit::Stack& stack) {
        stack[0] = std::get<0>(at::native_dropout(stack[0].toTensor(), 0.5, true));
      },
      true);
}

at::Tensor eagerDropout(const at::Tensor& input) {
  return std::get<0>(at::native_dropout(input, 0.5, true));
}

/// A generator of its own, seeded.
at::Generator seeded(uint64_t value) {
  at::Generator made = at::cuda::detail::createCUDAGenerator(0);
  made.set_current_seed(value);
  return made;
}

/// The default generator's state is put back at the end.
struct StateKept {
  at::Generator kept = gpuGenerator().graphsafe_get_state();
  ~StateKept() { gpuGenerator().graphsafe_set_state(kept); }
};

/// What eager draws from `generator`'s state, which moves on.
at::Tensor eagerFrom(const at::Generator& generator, const at::Tensor& input) {
  const StateKept kept;
  gpuGenerator().graphsafe_set_state(generator);
  return eagerDropout(input);
}

struct Drawing {
  ServePlan plan;
  std::shared_ptr<Slab> slab;
  std::vector<at::Tensor> outputs;
  std::unique_ptr<Executable> executable;
};

/// One dropout from each of `from`.
Drawing captureDropouts(CudaDevice& device, const at::Tensor& input,
                        const std::vector<at::Generator>& from) {
  Drawing made;
  for (size_t i = 0; i < from.size(); ++i) {
    PlannedAllocation values{kBytes, static_cast<int64_t>(i) * 2 * kBytes};
    made.plan.push_back({values, {kBytes / 4, values.offset + kBytes}});
  }
  ArenaShape shape;
  shape.bytes = static_cast<int64_t>(from.size()) * 2 * kBytes;
  made.slab = device.makeSlab(shape);
  ArenaSession session(made.plan, made.slab, kGpu);
  auto capture = device.beginCapture(from);
  for (size_t i = 0; i < from.size(); ++i) {
    session.enterCall(static_cast<int64_t>(i));
    torch::jit::Stack stack{input};
    capture->call(dropped(), from[i], stack);
    made.outputs.push_back(stack.at(0).toTensor());
  }
  session.leaveCall();
  made.executable = capture->finish();
  return made;
}

}  // namespace

TEST_CASE("law 3: a replay draws from the state that its generator has by then") {
  NEEDS_GPU();
  CudaDevice device(0);
  const at::Tensor input = values({64, 64}, 0);
  seed(1);
  Drawing drawing = captureDropouts(device, input, {gpuGenerator()});
  const StateKept kept;
  for (const uint64_t value : {21, 22}) {
    gpuGenerator().graphsafe_set_state(seeded(value));
    at::Generator twin = seeded(value);
    for (int step = 0; step < 3; ++step) {
      drawing.executable->replay();
      CHECK(sameBits(drawing.outputs[0], eagerFrom(twin, input)));
    }
    CHECK(gpuGenerator().get_offset() == twin.get_offset());
  }
  gpuGenerator().set_state(seeded(30).get_state());
  at::Generator twin = seeded(30);
  drawing.executable->replay();
  CHECK(sameBits(drawing.outputs[0], eagerFrom(twin, input)));
}

TEST_CASE("two generators of one state draw one after the other") {
  NEEDS_GPU();
  CudaDevice device(0);
  const at::Tensor input = values({64, 64}, 0);
  seed(4);
  const at::Generator same = gpuGenerator().graphsafe_get_state();
  Drawing drawing = captureDropouts(device, input, {gpuGenerator(), same});
  seed(5);
  const at::Tensor first = eagerDropout(input), second = eagerDropout(input);
  seed(5);
  drawing.executable->replay();
  CHECK(sameBits(drawing.outputs[0], first));
  CHECK(sameBits(drawing.outputs[1], second));
}

TEST_CASE("generators that share a state since the capture are refused, and none moves") {
  NEEDS_GPU();
  CudaDevice device(0);
  const at::Tensor input = values({64, 64}, 0);
  at::Generator paired = seeded(7);
  Drawing drawing = captureDropouts(device, input, {gpuGenerator(), paired});
  drawing.executable->replay();
  const StateKept kept;
  gpuGenerator().graphsafe_set_state(paired);
  const uint64_t before = paired.get_offset();
  CHECK_THROWS_WITH(drawing.executable->replay(), Catch::Contains("share one now"));
  CHECK(paired.get_offset() == before);
}

TEST_CASE("a launch that fails moves no generator") {
  NEEDS_GPU();
  CudaDevice device(0);
  const at::Tensor input = values({64, 64}, 0);
  Drawing drawing = captureDropouts(device, input, {gpuGenerator()});
  const auto stream = c10::cuda::getStreamFromPool(false, 0);
  const c10::cuda::CUDAStreamGuard guard(stream);
  seed(9);
  (void)eagerDraw();
  const uint64_t before = gpuGenerator().get_offset();
  // A stream that is being captured takes no fill that allocates, and no launch of its own.
  C10_CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  (void)cudaStreamSynchronize(stream);  // the capture is broken: nothing can be enqueued
  (void)cudaGetLastError();
  CHECK_THROWS_AS(drawing.executable->replay(), c10::Error);
  cudaGraph_t graph = nullptr;
  (void)cudaStreamEndCapture(stream, &graph);
  (void)cudaGetLastError();
  CHECK(gpuGenerator().get_offset() == before);
  drawing.executable->replay();
  seed(9);
  (void)eagerDraw();
  CHECK(sameBits(drawing.outputs[0], eagerDropout(input)));
}

TEST_CASE("law 12: other threads draw between the calls of a capture that draws") {
  NEEDS_GPU();
  CudaDevice device(0);
  const at::Tensor input = values({64, 64}, 0);
  (void)eagerDraw();
  const ServePlan plan{{{kBytes, 0}, {kBytes / 4, kBytes}}, {{kBytes, 0}, {kBytes / 4, kBytes}}};
  ArenaShape shape;
  shape.bytes = 4 * kBytes;
  auto slab = device.makeSlab(shape);
  std::string trouble;
  const auto elsewhere = [&] {
    std::thread([&] {
      try {
        (void)eagerDraw().sum().item();
      } catch (const std::exception& error) {
        trouble = error.what();
      }
    }).join();
  };
  ArenaSession session(plan, slab, kGpu);
  seed(31);
  auto capture = device.beginCapture({gpuGenerator()});
  elsewhere();
  torch::jit::Stack stack{input};
  session.enterCall(0);
  capture->call(dropped(), c10::IValue(), stack);
  elsewhere();
  const at::Tensor output = stack.at(0).toTensor();
  auto executable = capture->finish();
  elsewhere();
  CHECK(trouble == "");
  seed(31);
  for (int draw = 0; draw < 3; ++draw) (void)eagerDraw();
  const uint64_t drawn = gpuGenerator().get_offset();
  const at::Tensor expected = eagerDropout(input);
  seed(31);
  for (int draw = 0; draw < 3; ++draw) (void)eagerDraw();
  CHECK(gpuGenerator().get_offset() == drawn);
  executable->replay();
  CHECK(sameBits(output, expected));
}

// Since torch 2.12 a generator can be in several captures.
TEST_CASE("law 12: a generator that is captured elsewhere is refused, and that capture goes on") {
  NEEDS_GPU();
  CudaDevice device(0);
  const at::Tensor input = values({64, 64}, 0);
  at::cuda::CUDAGraph other;
  const auto stream = c10::cuda::getStreamFromPool(false, 0);
  at::Tensor drawn;
  std::string trouble;
  const c10::cuda::CUDAStreamGuard guard(stream);
  other.capture_begin({0, 0}, cudaStreamCaptureModeThreadLocal);
  drawn = eagerDropout(input);
  std::thread([&] {
    try {
      const auto capture = device.beginCapture({gpuGenerator()});
      torch::jit::Stack stack{input};
      capture->call(dropped(), c10::IValue(), stack);
    } catch (const c10::Error& error) {
      trouble = error.what_without_backtrace();
    }
  }).join();
  other.capture_end();
  if (TORCH_VERSION_MINOR >= 12) {
    CHECK(trouble == "");
  } else {
    CHECK_THAT(trouble, Catch::Contains("being captured elsewhere"));
  }
  seed(12);
  const at::Tensor expected = eagerDropout(input);
  seed(12);
  other.replay();
  CHECK(sameBits(drawn, expected));
}

TEST_CASE(
    "law 12: draws of another thread stay its generator's while a call that draws is captured") {
  NEEDS_GPU();
  if (TORCH_VERSION_MINOR < 12) {
    SUCCEED("they throw");
    return;
  }
  CudaDevice device(0);
  const at::Tensor input = values({64, 64}, 0);
  at::Tensor elsewhere;
  const Call draws = callOf(
      [&](torch::jit::Stack& stack) {
        std::thread([&] { elsewhere = eagerDraw().cpu(); }).join();
        stack[0] = std::get<0>(at::native_dropout(stack[0].toTensor(), 0.5, true));
      },
      true);
  seed(77);
  const at::Tensor expected = eagerDraw().cpu();
  seed(77);
  auto capture = device.beginCapture({gpuGenerator()});
  torch::jit::Stack stack{input};
  capture->call(draws, c10::IValue(), stack);
  const auto executable = capture->finish();
  CHECK(at::equal(elsewhere, expected));
  executable->replay();
  seed(77);
  (void)eagerDraw();
  CHECK(sameBits(stack.at(0).toTensor(), eagerDropout(input)));
}
