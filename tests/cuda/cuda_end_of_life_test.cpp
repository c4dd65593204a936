// How things end beside captures of others: no capture breaks, nobody waits, nothing throws.

#include "tests/cuda/gpu.h"

#include "runtime/cuda/cuda_event.h"
#include "runtime/cuda/cuda_marker.h"
#include "runtime/cuda/cuda_pages.h"

#include <ATen/cuda/CUDAGraph.h>
#include <ATen/cuda/Sleep.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>

#include <thread>

using namespace gravure;
using namespace gravure::test;

namespace {

constexpr int64_t kMiB = int64_t{1} << 20, kBytes = 64 * 64 * 4;

Call doubled() {
  return callOf([](torch::jit::Stack& stack) { stack[0] = at::relu(stack[0].toTensor() * 2); });
}

/// A program's things: an arena, a graph, a pool of a warm-up, a marker.
struct Things {
  std::unique_ptr<CudaDevice> device = std::make_unique<CudaDevice>(0);
  ServePlan plan = planOf({kBytes, kBytes});
  std::shared_ptr<Slab> slab, block;
  std::unique_ptr<Executable> executable;
  std::unique_ptr<Marker> marker;
  at::Tensor input = values({64, 64}, 0);

  Things() {
    device->installAllocator();
    device->beginWarmUp(0);
    (void)at::empty({32 * kMiB}, at::TensorOptions(kGpu)).fill_(1);
    device->endWarmUp();
    device->dropWarmUp();
    device->beginWarmUp(0);
    (void)at::empty({8 * kMiB}, at::TensorOptions(kGpu)).fill_(1);
    device->endWarmUp();
    slab = device->makeSlab(shapeOf(plan));
    std::string why;
    REQUIRE(slab->enter(0, why));
    {
      ArenaSession session(plan, slab, kGpu);
      session.enterCall(0);
      auto capture = device->beginCapture({});
      torch::jit::Stack stack{input};
      capture->call(doubled(), c10::IValue(), stack);
      executable = capture->finish();
    }
    executable->replay();
    marker = device->makeMarker();
    marker->record();
    slab->leave();
  }
};

void drop(std::unique_ptr<Things>& things, bool elsewhere) {
  if (elsewhere) {
    std::thread([&] { things.reset(); }).join();
  } else {
    things.reset();
  }
}

}  // namespace

TEST_CASE("law 12: what is dropped during a capture of somebody else's breaks it not") {
  NEEDS_GPU();
  const bool elsewhere = GENERATE(true, false);
  const auto mode = GENERATE(cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal);
  CAPTURE(elsewhere, mode);
  auto things = std::make_unique<Things>();
  const auto stream = c10::cuda::getStreamFromPool(false, 0);
  at::cuda::CUDAGraph other;
  at::Tensor result;
  {
    const c10::cuda::CUDAStreamGuard guard(stream);
    const at::Tensor input = at::ones({64}, at::TensorOptions(kGpu));
    stream.synchronize();
    other.capture_begin({0, 0}, mode);
    result = input + 1;
    drop(things, elsewhere);
    result = result * 3;
    other.capture_end();
    other.replay();
    CHECK(result.sum().item<float>() == 6 * 64);
  }
  (void)releaseAtRest(0);
  CHECK(cudaPages(0).bytes() == 0);
}

TEST_CASE("what ends waits for no work, and its pages come back when that is done") {
  NEEDS_GPU();
  (void)releaseAtRest(0);
  auto things = std::make_unique<Things>();
  auto next = std::make_unique<Things>();
  c10::cuda::device_synchronize();
  const int64_t pages = cudaPages(0).bytes();
  const auto stream = c10::cuda::getCurrentCUDAStream(0);
  at::cuda::sleep(2'000'000'000);
  things->executable->replay();
  drop(things, false);
  CHECK_FALSE(stream.query());
  CHECK(cudaPages(0).bytes() == pages);
  c10::cuda::device_synchronize();
  SECTION("for a later step") {
    std::string why;
    REQUIRE(next->slab->enter(0, why));
    next->slab->leave();
    CHECK(cudaPages(0).arenas() == 1);
  }
  SECTION("for torch.cuda.empty_cache(), which waits for that of the other one") {
    at::cuda::sleep(200'000'000);
    next->executable->replay();
    drop(next, false);
    CHECK(cudaPages(0).bytes() == pages);
    c10::cuda::CUDACachingAllocator::emptyCache();
    CHECK(cudaPages(0).bytes() == 0);
  }
  next.reset();
  CHECK(cudaPages(0).bytes() == 0);
}

TEST_CASE("the last work on streams is known without a wait, also behind a capture") {
  NEEDS_GPU();
  const auto stream = c10::cuda::getStreamFromPool(false, 0);
  {
    const c10::cuda::CUDAStreamGuard guard(stream);
    at::cuda::sleep(1);
    stream.synchronize();
    at::cuda::sleep(500'000'000);
  }
  LastWork work({stream.unwrap()});
  CHECK_FALSE(work.isDone());
  CHECK(work.wait());
  CHECK(work.isDone());
  CHECK(LastWork({}).isDone());
  cudaGraph_t graph = nullptr;
  C10_CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  LastWork later({stream.unwrap()});
  CHECK_FALSE(later.isDone());
  CHECK_FALSE(later.wait());
  C10_CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
  CHECK(later.wait());
  C10_CUDA_CHECK(cudaGraphDestroy(graph));
}

TEST_CASE("memory of PyTorch's has PyTorch's deleter, whoever asks outside a step") {
  NEEDS_GPU();
  using namespace c10::cuda::CUDACachingAllocator;
  CudaDevice device(0);
  device.installAllocator();
  const at::Tensor eager = at::empty({64, 64}, at::TensorOptions(kGpu));
  CHECK(eager.storage().data_ptr().get_deleter() == get()->raw_deleter());
  void* raw = get()->raw_allocate(kBytes);
  get()->raw_deallocate(raw);
  at::Tensor recorded;
  {
    ArenaSession session(1, kGpu);
    session.enterCall(0);
    recorded = at::empty({64, 64}, at::TensorOptions(kGpu));
    CHECK(recorded.storage().data_ptr().get_deleter() == get()->raw_deleter());
  }
  recorded = at::Tensor();
}
