// The device behind the seam: capture, replay, failure, memory. No program, no passes.

#include "tests/cuda/gpu.h"

#include "ir/torch_private/cuda_libraries.h"
#include "runtime/cuda/cuda_libraries.h"
#include "runtime/cuda/cuda_pages.h"

#include <ATen/cuda/CUDAContextLight.h>
#include <ATen/cuda/Sleep.h>
#include <c10/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAGuard.h>
#include <cuda_runtime_api.h>

#include <array>
#include <thread>

using namespace gravure;
using namespace gravure::test;

namespace {

constexpr int64_t kBytes = 64 * 64 * 4;

/// One partition of one call, captured with its memory from a plan.
struct Captured {
  std::shared_ptr<Slab> slab;
  ServePlan plan;
  std::vector<int64_t> mismatches;
  at::Tensor output;
  std::unique_ptr<Executable> executable;
};

Captured captureOne(CudaDevice& device, const Call& call, const at::Tensor& input,
                    const std::vector<int64_t>& allocations,
                    const std::vector<at::Generator>& generators = {}) {
  Captured captured;
  captured.plan = planOf(allocations);
  captured.slab = device.makeSlab(shapeOf(captured.plan));
  ArenaSession session(captured.plan, captured.slab, kGpu);
  session.enterCall(0);
  auto capture = device.beginCapture(generators);
  torch::jit::Stack stack{input};
  capture->call(call, c10::IValue(), stack);
  captured.output = stack.at(0).toTensor();
  captured.executable = capture->finish();
  captured.mismatches = session.mismatches();
  return captured;
}

Call doubled() {
  return callOf([](torch::jit::Stack& stack) { stack[0] = at::relu(stack[0].toTensor() * 2); });
}

Call dropped() {
  return callOf(
      [](torch::jit::Stack& stack) {
        stack[0] = std::get<0>(at::native_dropout(stack[0].toTensor(), 0.5, true));
      },
      true);
}

Call synchronising() {
  return callOf([](torch::jit::Stack& stack) {
    const at::Tensor sum = stack[0].toTensor().sum();
    stack[0] = stack[0].toTensor() + sum.item();
  });
}

/// Bytes of native_dropout's two results over 64 x 64 floats: values, then a mask of bools.
const std::vector<int64_t> kDropout{kBytes, kBytes / 4};

/// After whatever `disturb` does, eager draws what it would have drawn, and a capture works.
void expectIntact(CudaDevice& device, const std::function<void()>& disturb) {
  seed(11);
  (void)eagerDraw();
  const at::Tensor expected = eagerDraw();
  const int uses = poolUses(device);

  seed(11);
  (void)eagerDraw();
  disturb();
  CHECK(cudaGetLastError() == cudaSuccess);
  CHECK(sameBits(eagerDraw(), expected));
  CHECK(poolUses(device) == uses);
  CHECK_FALSE(device.allocator().isRouted(0, device.captures().pool()));
  CHECK(device.currentStream() == c10::cuda::getDefaultCUDAStream(0));

  const at::Tensor input = values({64, 64}, 3);
  Captured next = captureOne(device, doubled(), input, {kBytes, kBytes});
  next.executable->replay();
  CHECK(sameBits(next.output, at::relu(input * 2)));
}

}  // namespace

TEST_CASE("a captured call computes at the planned address, on new data at each replay") {
  NEEDS_GPU();
  CudaDevice device(0);
  const at::Tensor input = values({64, 64}, 0);
  Captured captured = captureOne(device, doubled(), input, {kBytes, kBytes});
  CHECK(captured.mismatches.empty());
  CHECK(captured.output.data_ptr() == captured.slab->base() + kBytes);
  for (uint64_t step = 1; step < 4; ++step) {
    input.copy_(values({64, 64}, step));
    captured.executable->replay();
    CHECK(sameBits(captured.output, at::relu(input * 2)));
  }
}

TEST_CASE("library workspaces are no part of the plan") {
  NEEDS_GPU();
  CudaDevice device(0);
  const at::Tensor input = values({64, 64}, 0);
  const Call product = callOf(
      [](torch::jit::Stack& stack) { stack[0] = stack[0].toTensor().mm(stack[0].toTensor()); });
  Captured captured = captureOne(device, product, input, {kBytes});
  // Where each product allocates its own, this plan does not know it, and it comes from the pool.
  if (torch_private::workspacesStay()) CHECK(captured.mismatches.empty());
  CHECK(captured.output.data_ptr() == captured.slab->base());
  captured.executable->replay();
  CHECK(sameBits(captured.output, input.mm(input)));

  // Whoever drops PyTorch's workspaces and cache does not pull memory from under the graph.
  at::cuda::clearCublasWorkspaces();
  device.allocator().emptyCache({0, 0});
  input.copy_(values({64, 64}, 1));
  captured.executable->replay();
  device.synchronize();
  CHECK(sameBits(captured.output, input.mm(input)));
}

TEST_CASE("no workspace is made that no product would use") {
  NEEDS_GPU();
  if (torch_private::workspacesStay()) {
    SUCCEED("they serve the next products");
    return;
  }
  std::thread([] {  // with handles of its own
    const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromPool(false, 0));
    std::array<size_t, 2> before{}, after{};
    for (size_t t = 0; t < 2; ++t) before[t] = torch_private::workspaceTables()[t]->map.size();
    readyLibraries();
    for (size_t t = 0; t < 2; ++t) after[t] = torch_private::workspaceTables()[t]->map.size();
    CHECK(after == before);
  })
      .join();
}

TEST_CASE("dropout draws in a replay what eager would, also between eager draws") {
  NEEDS_GPU();
  CudaDevice device(0);
  const at::Tensor input = values({64, 64}, 0);
  std::vector<at::Tensor> expected;
  seed(5);
  for (int step = 0; step < 10; ++step) {
    expected.push_back(std::get<0>(at::native_dropout(input, 0.5, true)));
    if (step % 3 == 1) expected.push_back(eagerDraw());
  }
  seed(5);
  for (const bool named : {true, false}) {
    seed(5);
    const auto generators =
        named ? std::vector<at::Generator>{gpuGenerator()} : std::vector<at::Generator>{};
    Captured captured = captureOne(device, dropped(), input, kDropout, generators);
    size_t at = 0;
    for (int step = 0; step < 10; ++step) {
      captured.executable->replay();
      CHECK(sameBits(captured.output, expected.at(at++)));
      if (step % 3 == 1) CHECK(sameBits(eagerDraw(), expected.at(at++)));
    }
  }
}

TEST_CASE("a partition draws from a paired generator, and the default one stays where it is") {
  NEEDS_GPU();
  CudaDevice device(0);
  const at::Tensor input = values({64, 64}, 0);
  at::Generator paired = gpuGenerator().clone();
  at::Generator twin = gpuGenerator().clone();
  paired.set_current_seed(21);
  twin.set_current_seed(21);
  seed(6);
  const uint64_t before = gpuGenerator().get_offset();

  ServePlan plan = planOf(kDropout);
  auto slab = device.makeSlab(shapeOf(plan));
  at::Tensor output;
  std::unique_ptr<Executable> executable;
  {
    ArenaSession session(plan, slab, kGpu);
    session.enterCall(0);
    auto capture = device.beginCapture({paired});
    torch::jit::Stack stack{input};
    capture->call(dropped(), paired, stack);
    output = stack.at(0).toTensor();
    executable = capture->finish();
  }
  for (int step = 0; step < 3; ++step) {
    executable->replay();
    at::Tensor expected;
    {
      auto kept = gpuGenerator().graphsafe_get_state();
      gpuGenerator().graphsafe_set_state(twin);
      expected = std::get<0>(at::native_dropout(input, 0.5, true));
      gpuGenerator().graphsafe_set_state(kept);
    }
    CHECK(sameBits(output, expected));
  }
  CHECK(gpuGenerator().get_offset() == before);
}

TEST_CASE("law 6: a capture that fails leaves nothing behind") {
  NEEDS_GPU();
  CudaDevice device(0);
  const at::Tensor input = values({64, 64}, 0);
  const std::vector<at::Generator> generators{gpuGenerator()};

  SECTION("a call synchronises") {
    expectIntact(device, [&] {
      CHECK_THROWS_AS(captureOne(device, synchronising(), input, {4, kBytes}, generators),
                      c10::Error);
    });
  }
  SECTION("a call draws, the next one synchronises") {
    const Call both = callOf(
        [](torch::jit::Stack& stack) {
          dropped().run(stack);
          synchronising().run(stack);
        },
        true);
    expectIntact(device, [&] {
      CHECK_THROWS_AS(captureOne(device, both, input, {kBytes}, generators), c10::Error);
    });
  }
  SECTION("a capture is dropped half way") {
    expectIntact(device, [&] {
      auto capture = device.beginCapture(generators);
      torch::jit::Stack stack{input};
      capture->call(dropped(), c10::IValue(), stack);
    });
  }
  SECTION("an error that no call reported ends it") {
    const Call quiet = callOf([](torch::jit::Stack&) {
      (void)cudaStreamSynchronize(c10::cuda::getCurrentCUDAStream(0));
      (void)cudaGetLastError();
    });
    expectIntact(device, [&] {
      CHECK_THROWS_AS(captureOne(device, quiet, input, {kBytes}, generators), c10::Error);
    });
  }
}

TEST_CASE("law 6: an injected fault leaves nothing behind") {
  NEEDS_GPU();
  CudaDevice device(0);
  const at::Tensor input = values({64, 64}, 0);
  const std::vector<at::Generator> generators{gpuGenerator()};
  for (const FaultPoint point : {FaultPoint::CaptureBegin, FaultPoint::CaptureCall,
                                 FaultPoint::CaptureEnd, FaultPoint::Allocation}) {
    CAPTURE(static_cast<int>(point));
    expectIntact(device, [&] {
      device.injectFault(point, 1);
      CHECK_THROWS_AS(captureOne(device, dropped(), input, kDropout, generators), c10::Error);
    });
  }
  Captured captured = captureOne(device, dropped(), input, kDropout, generators);
  expectIntact(device, [&] {
    device.injectFault(FaultPoint::Launch, 1);
    CHECK_THROWS_AS(captured.executable->replay(), c10::Error);
  });
}

TEST_CASE("the pool's use ends with the last graph and the device") {
  NEEDS_GPU();
  c10::MempoolId_t pool;
  {
    CudaDevice device(0);
    pool = device.captures().pool();
    const at::Tensor input = values({64, 64}, 0);
    Captured first = captureOne(device, doubled(), input, {kBytes, kBytes});
    Captured second = captureOne(device, doubled(), input, {kBytes, kBytes});
    CHECK(poolUses(device) == 3);
    first.executable.reset();
    CHECK(poolUses(device) == 2);
  }
  CHECK(CudaAllocator::install().getPoolUseCount(0, pool) == 0);  // to give it back may be to wait
  (void)releaseAtRest(0);
  // PyTorch forgets a pool that nobody uses, and then no longer knows its id.
  CHECK_THROWS_WITH(CudaAllocator::install().getPoolUseCount(0, pool),
                    Catch::Contains("graph_pools"));
}

TEST_CASE(
    "programs of one stream share what they are captured with, and their graphs never overlap") {
  NEEDS_GPU();
  const auto other = c10::cuda::getStreamFromPool(false, 0);
  CudaDevice first(0), second(0), apart(0);
  CapturePool& shared = first.captures();
  CHECK(&second.captures() == &shared);
  {
    c10::cuda::CUDAStreamGuard guard(other);
    CHECK(&apart.captures() != &shared);
    CHECK(&second.captures() == &shared);  // as at its first call
  }
  const auto here = c10::cuda::getCurrentCUDAStream(0);
  c10::cuda::CUDAEvent slow, quick;
  c10::cuda::device_synchronize();
  shared.inOrder(here, [] { at::cuda::sleep(200'000'000); });
  slow.record(here);
  CHECK_FALSE(slow.query());
  shared.inOrder(other, [] {});
  quick.record(other);
  quick.synchronize();
  CHECK(slow.query());
}

TEST_CASE("law 5: a tensor in the arena outlives slab, graph and device") {
  NEEDS_GPU();
  at::Tensor output;
  const at::Tensor input = values({64, 64}, 0);
  {
    CudaDevice device(0);
    Captured captured = captureOne(device, doubled(), input, {kBytes, kBytes});
    captured.executable->replay();
    output = captured.output;
  }
  const at::Tensor other = at::full({1 << 20}, 7.0, at::TensorOptions(kGpu));
  CHECK(sameBits(output, at::relu(input * 2)));
  std::thread([&] { output = at::Tensor(); }).join();
}

TEST_CASE("law 12: other threads work while a capture goes on") {
  NEEDS_GPU();
  CudaDevice device(0);
  const at::Tensor input = values({64, 64}, 0);
  (void)eagerDraw();
  ServePlan plan = planOf({kBytes, kBytes});
  auto slab = device.makeSlab(shapeOf(plan));
  ArenaSession session(plan, slab, kGpu);
  session.enterCall(0);
  auto capture = device.beginCapture({});
  std::string trouble;
  std::thread([&] {
    try {
      (void)eagerDraw().sum().item();
      (void)at::empty({1 << 26}, at::TensorOptions(kGpu)).fill_(1).sum().item();
      (void)at::empty({1 << 20}, at::TensorOptions(at::kFloat).pinned_memory(true));
    } catch (const std::exception& error) {
      trouble = error.what();
    }
  }).join();
  CHECK(trouble == "");
  torch::jit::Stack stack{input};
  capture->call(doubled(), c10::IValue(), stack);
  auto executable = capture->finish();
  executable->replay();
  CHECK(sameBits(stack.at(0).toTensor(), at::relu(input * 2)));
}
