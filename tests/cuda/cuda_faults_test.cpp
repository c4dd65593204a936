// Each call to the driver and to PyTorch's allocator that a life of programs makes fails once, on a GPU.
#include "runtime/cuda/cuda_ended_pools.h"
#include "runtime/cuda/cuda_pages.h"
#include "runtime/cuda/cuda_partition_graph.h"
#include "runtime/device/call_faults.h"
#include "runtime/device/step_scope.h"
#include "tests/cuda/pair.h"

#include <c10/cuda/CUDAStream.h>

#include <cstdlib>
#include <set>

using namespace gravure;
using namespace gravure::test;

namespace {

/// Two partitions with a host read between them, dropout in the first, and a gradient.
const char* const kLived = R"(gravure 1
graph step(%w : Float(64, 64, strides=[64, 1], device=cuda:0) {parameter "w"},
           %x : Float(32, 64, strides=[64, 1], device=cuda:0) {user_input "x"}):
  %wt : Float(64, 64, strides=[1, 64], device=cuda:0) = aten::t(%w)
  %y : Float(32, 64, strides=[64, 1], device=cuda:0) = aten::mm(%x, %wt)
  %d : Float(32, 64, strides=[64, 1], device=cuda:0), %m : Bool(32, 64, strides=[64, 1], device=cuda:0) = aten::native_dropout(%y, 0.3, True)
  %s : Float(device=cuda:0) = aten::sum(%d)
  %n : float = aten::_local_scalar_dense(%s)
  %h : Float(32, 64, strides=[64, 1], device=cuda:0) = aten::mul.Tensor(%d, %n)
  %r : Float(32, 64, strides=[64, 1], device=cuda:0) = aten::relu(%h)
  %rt : Float(64, 32, strides=[1, 64], device=cuda:0) = aten::t(%r)
  %g : Float(64, 64, strides=[64, 1], device=cuda:0) = aten::mm(%rt, %x)
  %loss : Float(device=cuda:0) = aten::mean(%r)
  return (%loss {loss}, %g {gradient "w"}, %r {output "r"})
)";

constexpr int kRounds = 8;

/// Two such programs on shared pages: warmed up, captured, replayed on two streams, with results held,
/// memory given back, and a parameter that is replaced.
struct Life {
  explicit Life(bool reference) : reference(reference) {
    for (auto& program : programs) program = load(kLived, reference);
  }

  /// By step, what it returns; nothing for one whose error was the injected one.
  std::vector<std::vector<at::Tensor>> live() {
    std::vector<std::vector<at::Tensor>> all;
    at::Tensor weight = values({64, 64}, 99);
    std::vector<c10::IValue> held;
    // The same in each life: PyTorch keeps cuBLAS' workspace of each stream, 32 MiB on a large GPU.
    static const auto other = c10::cuda::getStreamFromPool(false, 0);
    for (int round = 0; round < kRounds; ++round) {
      if (round == 5 && !reference) (void)programs[0]->device().releaseMemory();
      if (round == 6) weight = values({64, 64}, 99);
      for (auto& program : programs) {
        const at::Tensor x = values({32, 64}, round);
        seed(500 + round);
        c10::cuda::getDefaultCUDAStream(0).synchronize();
        const auto stream = round == 7 ? other : c10::cuda::getDefaultCUDAStream(0);
        c10::cuda::setCurrentCUDAStream(stream);
        all.push_back(step(*program, weight, x, round == 4 ? &held : nullptr));
        stream.synchronize();
        c10::cuda::setCurrentCUDAStream(c10::cuda::getDefaultCUDAStream(0));
      }
      if (round == 5) held.clear();
    }
    return all;
  }

  std::vector<at::Tensor> step(Runtime& program, const at::Tensor& weight, const at::Tensor& x,
                               std::vector<c10::IValue>* held) {
    std::vector<c10::IValue> inputs{weight, x};
    inputs.resize(program.program().entries[0].inputs.size());
    std::vector<at::Tensor> copies;
    try {
      std::vector<c10::IValue> results = program.run("step", std::move(inputs));
      for (const c10::IValue& each : results) copies.push_back(each.toTensor().clone());
      if (held != nullptr) *held = std::move(results);
    } catch (const c10::Error& error) {
      ++errors;
      CHECK_THAT(error.what_without_backtrace(),
                 Catch::Contains("injected fault at") || Catch::Contains("unknown error"));
    }
    return copies;
  }

  int64_t captures() const { return programs[0]->stats().captures + programs[1]->stats().captures; }

  const bool reference;
  std::unique_ptr<Runtime> programs[2];
  int errors = 0;
};

/// Segments of pools that are somebody's own.
size_t privateSegments() {
  EndedPools::of(0).giveBack();
  c10::cuda::CUDACachingAllocator::emptyCache();
  size_t count = 0;
  for (const auto& segment : CudaAllocator::install().base().snapshot({0, 0}, false).segments)
    count += segment.owner_private_pool_id != c10::MempoolId_t{0, 0};
  return count;
}

size_t freeMemory() {
  size_t free = 0, total = 0;
  C10_CUDA_CHECK(cudaMemGetInfo(&free, &total));
  return free;
}

}  // namespace

TEST_CASE("law 6: each call that may fail fails once, and nothing is left of it") {
  NEEDS_GPU();
  const auto expected = Life(/*reference=*/true).live();
  int64_t passes = 0;
  for (int warm = 0; warm < 2; ++warm) {  // the first one makes what the process keeps
    CallFaults::start(0);
    {
      Life whole(/*reference=*/false);
      (void)whole.live();
      CHECK(whole.errors == 0);
      CHECK(whole.captures() >= 4);
    }
    passes = CallFaults::stop();
  }
  CHECK(passes > 100);
  const size_t segments = privateSegments(), before = freeMemory();
  std::set<std::string> failed;
  // GRAVURE_FAULTS=200:300 tries those alone.
  const char* const range = std::getenv("GRAVURE_FAULTS");
  int64_t first = 1, last = passes;
  if (range != nullptr) {
    first = std::strtoll(range, nullptr, 10);
    last = std::min<int64_t>(
        passes, std::strtoll(std::string(range).substr(std::string(range).find(':') + 1).c_str(),
                             nullptr, 10));
  }
  std::set<std::string> lost;  // what costs memory, and how much
  size_t left = before;
  for (int64_t pass = first; pass <= last; ++pass) {
    CallFaults::start(pass);
    std::vector<std::vector<at::Tensor>> got;
    {
      Life life(/*reference=*/false);
      got = life.live();
      CHECK(life.errors <= 1);
      c10::cuda::device_synchronize();
    }
    (void)CallFaults::stop();
    CAPTURE(pass, CallFaults::failed());
    failed.insert(CallFaults::failed());
    bool right = got.size() == expected.size();
    for (size_t i = 0; right && i < got.size(); ++i) {
      for (size_t o = 0; o < got[i].size(); ++o) right &= sameBits(got[i][o], expected[i][o]);
    }
    CHECK(right);
    got.clear();
    (void)CudaDevice(0).releaseMemory();
    const ArenaPages* pages = knownCudaPages(0);
    CHECK((pages == nullptr || (pages->arenas() == 0 && pages->bytes() == 0)));
    CHECK_FALSE(PartitionGraph::oneIsCaptured());
    CHECK_FALSE(StepScope::isInside());
    CHECK(cudaGetLastError() == cudaSuccess);
    CHECK(privateSegments() <= segments);
    seed(3);
    CHECK_NOTHROW(eagerDraw());  // no generator is left in a capture
    const size_t now = freeMemory();
    if (now + (size_t{1} << 20) < left)
      lost.insert(CallFaults::failed() + ", " + std::to_string((left - now) >> 20) + " MiB");
    left = now;
  }
  for (const std::string& each : failed) WARN("failed once: " << each);
  const auto kept = {"the making of pages",
                     "the mapping of pages",
                     "the unmapping of pages",
                     "the making of an event",
                     "an event",
                     "a wait for an event",
                     "the routing of allocations to a pool",
                     "the begin of a capture by the driver",
                     "the instantiation of a graph",
                     "the launch of a graph",
                     "the launch of a graph that draws"};
  for (const char* const each : kept) {
    CAPTURE(each);
    CHECK((range != nullptr || failed.count(each) == 1));
  }
  for (const std::string& each : lost) WARN("memory is gone after " << each);
  CHECK(freeMemory() + (size_t{256} << 20) >= before);
}
