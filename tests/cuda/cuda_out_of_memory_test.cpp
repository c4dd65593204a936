// A GPU without memory, or without virtual memory: steps stay right, it is said, and idle arenas give way.

#include "tests/cuda/pair.h"

#include "runtime/cuda/cuda_blocks.h"
#include "runtime/cuda/cuda_pages.h"

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/library.h>

#include <cstdlib>

using namespace gravure;
using namespace gravure::test;
using namespace c10::cuda::CUDACachingAllocator;

namespace {

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kTooMuch = int64_t{1} << 40;

int64_t reserved() { return getDeviceStats(0).reserved_bytes[0].current; }

/// Bytes of scratch memory that gravure_test::hungry takes, in captures and outside.
int64_t inCapture = 0, outside = 0;

at::Tensor hungry(const at::Tensor& x) {
  const bool capturing =
      c10::cuda::currentStreamCaptureStatusMayInitCtx() != c10::cuda::CaptureStatus::None;
  const int64_t bytes = capturing ? inCapture : outside;
  const at::Tensor scratch = at::empty({bytes}, x.options().dtype(at::kByte));
  return x * 2;
}

const char* const kHungry = R"(gravure 1
graph step(%w : Float(64, 64, strides=[64, 1], device=cuda:0) {parameter "w"},
           %x : Float(32, 64, strides=[64, 1], device=cuda:0) {user_input "x"}):
  %y : Float(32, 64, strides=[64, 1], device=cuda:0) = aten::mm(%x, %w)
  %d : Float(32, 64, strides=[64, 1], device=cuda:0), %m : Bool(32, 64, strides=[64, 1], device=cuda:0) = aten::native_dropout(%y, 0.25, True)
  %s : Float(32, 64, strides=[64, 1], device=cuda:0) = gravure_test::hungry(%d)
  %loss : Float(device=cuda:0) = aten::sum(%s)
  return (%loss {loss}, %s {output "s"})
)";

std::string remarksOf(Runtime& runtime) {
  std::string text;
  for (const Remark& remark : runtime.remarks().all())
    text += remark.name + ": " + remark.message + "\n";
  return text;
}

size_t count(Runtime& runtime, PartitionState state) {
  const auto states = runtime.partitionStates("step");
  return static_cast<size_t>(std::count(states.begin(), states.end(), state));
}

struct WithoutVirtualMemory {
  WithoutVirtualMemory() { setenv("GRAVURE_NO_VIRTUAL_MEMORY", "1", 1); }
  ~WithoutVirtualMemory() { unsetenv("GRAVURE_NO_VIRTUAL_MEMORY"); }
};

/// Takes all memory of the GPU but about `left` bytes.
at::Tensor fill(int64_t left) {
  emptyCache();
  size_t free = 0, total = 0;
  C10_CUDA_CHECK(cudaMemGetInfo(&free, &total));
  return at::empty({static_cast<int64_t>(free) - left}, at::TensorOptions(kGpu).dtype(at::kByte));
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(gravure_test, m) { m.def("hungry(Tensor x) -> Tensor"); }
TORCH_LIBRARY_IMPL(gravure_test, CUDA, m) { m.impl("hungry", hungry); }

TEST_CASE("law 6: a capture that runs out of memory is quarantined, and says how much is missing") {
  NEEDS_GPU();
  inCapture = outside = kMiB;
  Pair pair(kHungry);
  for (uint64_t step = 0; step < 2; ++step) CHECK(pair.step(step) == "");
  const int uses = poolUses(static_cast<CudaDevice&>(pair.captured->device()));
  inCapture = kTooMuch;
  for (uint64_t step = 2; step < 8; ++step) CHECK(pair.step(step) == "");
  CHECK(count(*pair.captured, PartitionState::Quarantined) == 1);
  const std::string remarks = remarksOf(*pair.captured);
  CAPTURE(remarks);
  CHECK_THAT(remarks, Catch::Contains("capture-failed") && Catch::Contains("out of memory") &&
                          Catch::Contains("MiB are missing"));
  CHECK(poolUses(static_cast<CudaDevice&>(pair.captured->device())) == uses);
  // Another program is captured as ever.
  inCapture = kMiB;
  Pair other(kHungry);
  for (uint64_t step = 0; step < 6; ++step) CHECK(other.step(step) == "");
  CHECK(count(*other.captured, PartitionState::Captured) == 1);
}

TEST_CASE("a warm-up that runs out of memory is the caller's error, and leaves no memory behind") {
  NEEDS_GPU();
  inCapture = outside = kMiB;
  Pair pair(kHungry);
  const at::Tensor x = values({32, 64}, 0);
  (void)eagerDraw();
  CHECK(pair.step(0) == "");
  pair.results.clear();
  emptyCache();
  outside = kTooMuch;
  CHECK_THROWS_AS(pair.run(*pair.captured, x), c10::OutOfMemoryError);
  emptyCache();
  const int64_t before = reserved();
  CHECK_THROWS_AS(pair.run(*pair.captured, x), c10::OutOfMemoryError);
  emptyCache();
  CHECK(reserved() <= before);
  outside = kMiB;
  for (uint64_t step = 1; step < 7; ++step) CHECK(pair.step(step) == "");
  CHECK(count(*pair.captured, PartitionState::Captured) == 1);
}

TEST_CASE("law 6: without memory for its arena a program runs uncaptured, and is captured later") {
  NEEDS_GPU();
  bool enormous = true;
  Pair pair(kLinear);
  RuntimeOptions options;
  options.editBuffers = [&](std::vector<Buffer>& buffers) {
    if (enormous) buffers.front().bytes = kTooMuch;
  };
  pair.captured = loadWith(kLinear, std::move(options));
  for (uint64_t step = 0; step < 8; ++step) CHECK(pair.step(step) == "");
  CHECK(pair.captured->stats().captures == 0);
  const std::string remarks = remarksOf(*pair.captured);
  CAPTURE(remarks);
  CHECK_THAT(remarks, Catch::Contains("no-arena") && Catch::Contains("MiB of them are missing"));
  CHECK(pair.captured->remarks().all().size() == 1);
  enormous = false;
  for (uint64_t step = 8; step < 24; ++step) CHECK(pair.step(step) == "");
  CHECK(pair.captured->stats().captures == 1);
  CHECK(pair.captured->stats().uncapturedSteps == 20);
}

TEST_CASE("idle arenas give their memory to whoever finds none") {
  NEEDS_GPU();
  Pair pair(kLarge, {4096, 4096});
  for (uint64_t step = 0; step < 5; ++step) CHECK(pair.step(step) == "");
  pair.results.clear();
  const int64_t arena = cudaPages(0).bytes();
  REQUIRE(arena > 250 * kMiB);
  {
    const at::Tensor filled = fill(100 * kMiB);
    const at::Tensor wanted =
        at::full({(100 * kMiB + arena / 2) / 4}, 3.0, at::TensorOptions(kGpu).dtype(at::kFloat));
    CHECK(cudaPages(0).bytes() == 0);
    CHECK(wanted.sum().item<float>() > 0);
    // What a step uses is not taken from it; more than there is stays an error.
    CHECK_THROWS_AS(at::empty({kTooMuch}, at::TensorOptions(kGpu).dtype(at::kByte)),
                    c10::OutOfMemoryError);
  }
  emptyCache();
  for (uint64_t step = 5; step < 8; ++step) CHECK(pair.step(step) == "");
  CHECK(pair.captured->stats().captures == 1);
  CHECK(pair.captured->stats().uncapturedSteps == 2);
}

TEST_CASE("law 5: what somebody holds of an idle arena is not given away") {
  NEEDS_GPU();
  Pair pair(kLarge, {4096, 4096});
  for (uint64_t step = 0; step < 5; ++step) CHECK(pair.step(step) == "");
  const at::Tensor held = pair.results[1].toTensor(), bits = held.clone();
  REQUIRE(cudaPagesAt(held.const_data_ptr()) != nullptr);
  {
    const at::Tensor filled = fill(64 * kMiB);
    CHECK_THROWS_AS(at::empty({kTooMuch}, at::TensorOptions(kGpu).dtype(at::kByte)),
                    c10::OutOfMemoryError);
  }
  emptyCache();
  CHECK(sameBits(held, bits));
}

TEST_CASE("without virtual memory an arena is a block of PyTorch's allocator") {
  NEEDS_GPU();
  emptyCache();
  const int64_t pages = cudaPages(0).bytes(), before = reserved();
  at::Tensor kept, bits;
  {
    const WithoutVirtualMemory without;
    Pair pair(kLarge, {4096, 4096}), other(kLinear);
    for (uint64_t step = 0; step < 6; ++step) {
      CHECK(pair.step(step) == "");
      CHECK(other.step(step) == "");
    }
    CHECK(cudaPages(0).bytes() == pages);
    CHECK(cudaBlocks(0).arenas() == 2);
    CHECK_THAT(remarksOf(*pair.captured),
               Catch::Contains("arena-unshared") && Catch::Contains("GRAVURE_NO_VIRTUAL_MEMORY"));
    CHECK(count(*pair.captured, PartitionState::Captured) == 1);
    CHECK(pair.captured->stats().uncapturedSteps == 2);
    CHECK(cudaBlocks(0).contains(pair.results[1].toTensor().const_data_ptr()));
    // Steps on other streams, and a reader that is told of.
    const auto side = c10::cuda::getStreamFromPool(false, 0);
    for (uint64_t step = 6; step < 10; ++step) {
      C10_CUDA_CHECK(cudaDeviceSynchronize());
      c10::cuda::CUDAStreamGuard guard(step % 2 ? c10::cuda::getStreamFromPool(false, 0) : side);
      CHECK(pair.step(step) == "");
    }
    C10_CUDA_CHECK(cudaDeviceSynchronize());
    pair.results[1].toTensor().record_stream(side);
    kept = pair.results[1].toTensor();
    bits = kept.clone();
    CHECK_THROWS_WITH(shareIpcHandle(const_cast<void*>(kept.const_data_ptr())),
                      Catch::Contains("share a clone() of it"));
  }
  CHECK(cudaBlocks(0).arenas() == 1);
  CHECK(sameBits(kept, bits));
  kept = bits = at::Tensor();
  CHECK(cudaBlocks(0).arenas() == 0);
  C10_CUDA_CHECK(cudaDeviceSynchronize());
  emptyCache();
  CHECK(reserved() <= before + 64 * kMiB);  // workspaces of the streams stay
}
