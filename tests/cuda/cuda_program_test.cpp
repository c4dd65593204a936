// Whole programs on a GPU, through the passes and the runtime: captured equals uncaptured in bits.

#include "tests/cuda/pair.h"

#include "runtime/cuda/cuda_pages.h"

#include <c10/cuda/CUDAGuard.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

using namespace gravure;
using namespace gravure::test;

namespace {

/// Captures must refuse it, and nothing in its schema says so.
at::Tensor readsInside(const at::Tensor& x) { return x + x.sum().item(); }

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

TEST_CASE("law 5: a gradient that nobody holds is lent, and a held one keeps its bits") {
  NEEDS_GPU();
  Pair pair(kLinear);
  for (uint64_t step = 0; step < 6; ++step) CHECK(pair.step(step) == "");
  CHECK(cudaPagesAt(pair.results[1].toTensor().const_data_ptr()) != nullptr);
  CHECK(cudaPagesAt(pair.results[2].toTensor().const_data_ptr()) == nullptr);
  CHECK(pair.captured->stats().uncapturedSteps == 2);
  const at::Tensor held = pair.results[1].toTensor(), bits = held.clone();
  for (uint64_t step = 6; step < 30; ++step) CHECK(pair.step(step) == "");
  CHECK(sameBits(held, bits));
  CHECK(cudaPagesAt(pair.results[1].toTensor().const_data_ptr()) == nullptr);
  // Whoever holds it for many steps is left the memory, and steps are replayed in another.
  const int64_t replays = pair.captured->stats().replays;
  CHECK(pair.step(30) == "");
  CHECK(pair.captured->stats().replays == replays + 1);
  pair.captured.reset();
  CHECK(sameBits(held, bits));
}

TEST_CASE("law 5: a lent gradient is read on another stream while the next step runs") {
  NEEDS_GPU();
  Pair pair(kLarge, {4096, 4096});
  for (uint64_t step = 0; step < 4; ++step) CHECK(pair.step(step) == "");
  const at::Tensor bits = pair.results[1].toTensor().clone();
  const auto reader = c10::cuda::getStreamFromPool(false, 0);
  const at::Tensor busy = values({4096, 4096}, 1);
  at::Tensor read;
  c10::cuda::device_synchronize();
  {
    c10::cuda::CUDAStreamGuard guard(reader);
    at::Tensor slow = busy;
    for (int i = 0; i < 30; ++i) slow = at::mm(slow, busy).mul_(1e-2);
    read = pair.results[1].toTensor().clone();
    pair.results[1].toTensor().record_stream(reader);
  }
  pair.results.clear();
  (void)pair.run(*pair.captured, values({4096, 4096}, 77));
  CHECK(pair.captured->stats().uncapturedSteps == 2);
  c10::cuda::device_synchronize();
  CHECK(sameBits(read, bits));
}

TEST_CASE("law 5: static results lie at one address, with each step's bits") {
  NEEDS_GPU();
  Pair pair(kLinear, {32, 64}, ResultPolicy::Static);
  std::vector<at::Tensor> kept;
  for (uint64_t step = 0; step < 8; ++step) {
    if (step == 5) pair.weight = values({64, 64}, 5);
    CHECK(pair.step(step) == "");
    if (step < 2) continue;
    for (const c10::IValue& result : pair.results) kept.push_back(result.toTensor());
    if (step > 2) CHECK(pair.results[1].toTensor().is_same(kept[1]));
  }
  CHECK(pair.captured->stats().copiedResultBytes == 0);
}

TEST_CASE("what warm-up allocated is given back before the arena is made") {
  NEEDS_GPU();
  c10::cuda::CUDACachingAllocator::emptyCache();
  const auto reserved = [] {
    return c10::cuda::CUDACachingAllocator::getDeviceStats(0).reserved_bytes[0].current;
  };
  auto runtime = load(kLarge, false);
  const at::Tensor w = values({4096, 4096}, 1), x = values({4096, 4096}, 2);
  const int64_t before = reserved();
  for (int step = 0; step < 6; ++step) (void)runtime->run("step", {w, x});
  REQUIRE(runtime->stats().replays > 0);
  const int64_t workspaces = int64_t{80} << 20;
  CHECK(reserved() - before <= runtime->stats().arenaBytes + workspaces);
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
