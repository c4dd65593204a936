// Warm-up: where its memory comes from, who gets it afterwards, and that nobody waits for that.

#include "tests/cuda/gpu.h"

#include "runtime/cuda/cuda_pages.h"
#include "runtime/cuda/cuda_warm_up_memory.h"

#include <ATen/cuda/CUDAGraph.h>
#include <ATen/cuda/Sleep.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>

#include <chrono>
#include <thread>

using namespace gravure;
using namespace gravure::test;
using namespace c10::cuda::CUDACachingAllocator;

namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

int64_t reserved() { return getDeviceStats(0).reserved_bytes[0].current; }
int64_t freeMemory() {
  size_t free = 0, total = 0;
  C10_CUDA_CHECK(cudaMemGetInfo(&free, &total));
  return static_cast<int64_t>(free);
}

at::Tensor floats(int64_t bytes) { return at::empty({bytes / 4}, at::TensorOptions(kGpu)); }

ArenaShape shapeOfBytes(int64_t bytes) {
  ArenaShape shape;
  shape.bytes = bytes;
  return shape;
}

/// The arena's memory as one tensor.
at::Tensor all(const Slab& arena) {
  cudaPages(0).retain(arena.base());
  c10::DataPtr memory(arena.base(), arena.base(), CudaAllocator::deleter(), kGpu);
  c10::Storage storage(c10::Storage::use_byte_size_t(), arena.bytes(), std::move(memory), nullptr,
                       false);
  return at::empty({0}, at::TensorOptions(kGpu)).set_(storage, 0, {arena.bytes() / 4}, {1});
}

/// Gives back what earlier tests left, so that `reserved` changes by this one's doing alone.
void giveBackOthers() {
  c10::cuda::device_synchronize();
  emptyCache();
  WarmUpMemory::of(0).giveBackWaiting();
}

/// PyTorch empties the caches of all GPUs, so nothing is done where another one has memory.
#define NEEDS_OTHER_GPUS_EMPTY()                                                                   \
  for (c10::DeviceIndex other = 1; other < c10::cuda::device_count(); ++other) {                   \
    if (getDeviceStats(other).reserved_bytes[0].current == 0) continue;                            \
    WARN("skipped: another GPU has memory");                                                       \
    SUCCEED();                                                                                     \
    return;                                                                                        \
  }

constexpr int64_t kSecond = 1'500'000'000;  // cycles, roughly

/// The stream's work, which takes a fraction of that by itself, waits for other work.
void waitsOn(c10::cuda::CUDAStream stream) {
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  CHECK_FALSE(stream.query());
}

/// Runs once what loads kernels, or makes memory for a stream, on each; a sum to write to.
at::Tensor readied(std::initializer_list<c10::cuda::CUDAStream> streams) {
  at::Tensor sum;
  for (const auto each : streams) {
    c10::cuda::CUDAStreamGuard guard(each);
    at::cuda::sleep(1);
    sum = (floats(kMiB).fill_(0).sum() + 1).clone();
    (void)sum.item<float>();
  }
  emptyCache();
  return sum;
}

/// Bytes reserved when `device` has its allocator, what is made once is there, and earlier tests have nothing.
int64_t reservedAtStart(CudaDevice& device) {
  device.installAllocator();
  (void)readied({device.currentStream()});
  giveBackOthers();
  return reserved();
}

}  // namespace

TEST_CASE("the arena takes over the warm-up's memory while work is still going on there") {
  NEEDS_GPU();
  emptyCache();
  CudaDevice device(0);
  device.installAllocator();
  const auto stream = device.currentStream(), other = c10::cuda::getStreamFromPool(false, 0);
  at::Tensor sum = readied({other, stream});
  const int64_t before = reserved(), freeBefore = freeMemory();
  at::Tensor kept;
  device.beginWarmUp(0);
  {
    const at::Tensor a = floats(100 * kMiB), b = floats(72 * kMiB);
    kept = at::full({1000}, 7.0, at::TensorOptions(kGpu));
    at::cuda::sleep(kSecond);
    a.fill_(1);
    b.fill_(2);
    sum.copy_(a.sum() + b.sum());
  }
  device.endWarmUp();
  const int64_t warm = reserved();
  CHECK(warm >= before + 172 * kMiB);
  device.dropWarmUp();
  CHECK(reserved() == warm);  // PyTorch counts it no longer, but the pages are there
  auto arena = device.makeSlab(shapeOfBytes(160 * kMiB));
  CHECK(reserved() == warm);
  CHECK(cudaPages(0).bytes() == 160 * kMiB);
  at::Tensor whole;
  std::string why;
  SECTION("on the same stream") {
    REQUIRE(arena->enter(0, why));
    whole = all(*arena).fill_(3);
    arena->leave();
  }
  SECTION("on another stream") {
    c10::cuda::CUDAStreamGuard guard(other);
    REQUIRE(arena->enter(0, why));
    whole = all(*arena).fill_(3);
    arena->leave();
  }
  CHECK_FALSE(stream.query());  // all this time it was busy: nothing has waited for it
  device.tidyWarmUp();
  CHECK_FALSE(stream.query());
  CHECK(reserved() == warm);
  device.synchronize();
  CHECK(sum.item<float>() == static_cast<float>((100 + 2 * 72) * kMiB / 4));
  CHECK(whole.sum().item<float>() == 3.f * 160 * kMiB / 4);
  CHECK(kept.sum().item<float>() == 7000.f);
  device.tidyWarmUp();
  CHECK(reserved() == before + 162 * kMiB);  // the arena, and the page of what is kept
  CHECK(freeMemory() <= freeBefore - 162 * kMiB);
  CHECK_THROWS_WITH(shareIpcHandle(kept.data_ptr()), Catch::Contains("share a clone() of it"));
  kept = whole = at::Tensor();
  arena.reset();
  emptyCache();
  device.tidyWarmUp();
  CHECK(reserved() == before);
  CHECK(freeMemory() == freeBefore);
}

TEST_CASE("a warm-up takes over the memory of an ended one while work is still going on there") {
  NEEDS_GPU();
  emptyCache();
  CudaDevice first(0), second(0);
  first.installAllocator();
  const auto stream = first.currentStream(), other = c10::cuda::getStreamFromPool(false, 0);
  at::Tensor sum = readied({other, stream}), next;
  const int64_t before = reserved();
  first.beginWarmUp(0);
  {
    const at::Tensor a = floats(160 * kMiB);
    at::cuda::sleep(kSecond);
    sum.copy_(a.fill_(1).sum());
  }
  first.endWarmUp();
  first.dropWarmUp();
  const int64_t warm = reserved();
  CHECK(warm >= before + 160 * kMiB);
  second.beginWarmUp(0);
  SECTION("on the same stream") { next = floats(150 * kMiB).fill_(2); }
  SECTION("on another stream") {
    c10::cuda::CUDAStreamGuard guard(other);
    next = floats(150 * kMiB).fill_(2);
    waitsOn(other);
  }
  SECTION("on another stream, which is not the current one") {
    void* memory = CudaAllocator::install().raw_alloc_with_stream(150 * kMiB, other);
    C10_CUDA_CHECK(cudaMemsetAsync(memory, 0, 150 * kMiB, other));
    waitsOn(other);
    CudaAllocator::install().raw_delete(memory);
  }
  second.endWarmUp();
  CHECK_FALSE(stream.query());  // all this time it was busy: nothing has waited for it
  CHECK(reserved() == warm);
  first.synchronize();
  CHECK(sum.item<float>() == 160.f * kMiB / 4);
  if (next.defined()) CHECK(next.sum().item<float>() == 2.f * 150 * kMiB / 4);
  next = at::Tensor();
  second.dropWarmUp();
  second.tidyWarmUp();
  CHECK(reserved() == before);
}

TEST_CASE("several warm-ups at once, and a second one after the first, lie apart") {
  NEEDS_GPU();
  CudaDevice first(0), second(0);
  first.installAllocator();
  std::vector<at::Tensor> tensors;
  const auto add = [&](int64_t bytes) {
    tensors.push_back(floats(bytes).fill_(static_cast<double>(tensors.size())));
  };
  for (int round = 0; round < 3; ++round) {
    for (CudaDevice* device : {&first, &second}) {
      device->beginWarmUp(0);
      for (int64_t bytes : {kMiB, 3 * kMiB, 30 * kMiB, 70 * kMiB}) add(bytes);
      device->endWarmUp();
      if (round == 1) device->dropWarmUp();
    }
    tensors[round] = at::Tensor();
  }
  for (size_t i = 3; i < tensors.size(); ++i)
    CHECK(sameBits(tensors[i], at::full_like(tensors[i], static_cast<double>(i))));
}

TEST_CASE("programs that warm up one after another take what one of them takes") {
  NEEDS_GPU();
  CudaDevice first(0), second(0);
  const int64_t before = reservedAtStart(first);
  const auto warmUp = [](CudaDevice& device) {
    device.beginWarmUp(0);
    (void)floats(160 * kMiB).fill_(1);
    device.endWarmUp();
  };
  warmUp(first);
  const int64_t warm = reserved();
  CHECK(warm >= before + 160 * kMiB);
  warmUp(second);  // as a graph that Dynamo compiled anew after the first one's only call
  CHECK(reserved() == warm);
  SECTION("and the one that is planned gets it all") {
    second.dropWarmUp();
    auto arena = second.makeSlab(shapeOfBytes(160 * kMiB));
    CHECK(reserved() == warm);
    arena.reset();
    second.synchronize();
    emptyCache();
  }
  SECTION("replays of any program give it back, where nobody warms up any more") {
    second.synchronize();
    for (int call = 0; call < 11; ++call) second.tidyWarmUp();
    CHECK(reserved() == warm);
    warmUp(first);
    CHECK(reserved() == warm);
    second.synchronize();
    for (int call = 0; call < 13; ++call) second.tidyWarmUp();
    CHECK(reserved() == before);
  }
  SECTION("torch.cuda.empty_cache() gives it back") { emptyCache(); }
  SECTION("memory at rest is asked back") { (void)second.releaseMemory(); }
  CHECK(reserved() == before);
}

TEST_CASE("a warm-up of which the bytes are known lies in one segment") {
  NEEDS_GPU();
  CudaDevice device(0);
  const int64_t before = reservedAtStart(device);
  device.beginWarmUp(0);
  { const at::Tensor a = floats(64 * kMiB), b = floats(64 * kMiB), c = floats(96 * kMiB); }
  device.endWarmUp();
  const int64_t warm = reserved();
  CHECK(warm >= before + 224 * kMiB);
  at::Tensor kept;
  SECTION("and so has no holes") {
    device.beginWarmUp(188 * kMiB);
    const at::Tensor a = floats(130 * kMiB).fill_(1), b = floats(58 * kMiB).fill_(2);
    CHECK(reserved() == warm);
    CHECK(a.sum().item<float>() == 130.f * kMiB / 4);
    device.endWarmUp();
  }
  SECTION("but not where there were few holes") {
    device.beginWarmUp(218 * kMiB);
    const at::Tensor a = floats(130 * kMiB).fill_(1);  // lies in none of the three
    CHECK(reserved() >= warm + 128 * kMiB);
    device.endWarmUp();
  }
  SECTION("but not where something lies in the pool") {
    device.beginWarmUp(0);
    kept = floats(64 * kMiB).fill_(3);
    device.endWarmUp();
    device.beginWarmUp(188 * kMiB);
    CHECK(reserved() == warm);
    device.endWarmUp();
    CHECK(kept.sum().item<float>() == 3.f * 64 * kMiB / 4);
  }
  SECTION("nor where another program warms up in the same step") {
    CudaDevice other(0);
    other.beginWarmUp(0);
    other.endWarmUp();
    device.beginWarmUp(188 * kMiB);
    const at::Tensor a = floats(130 * kMiB).fill_(1);
    CHECK(reserved() >= warm + 128 * kMiB);
    device.endWarmUp();
  }
  SECTION("nor where the GPU has no room for it") {
    device.beginWarmUp(int64_t{1} << 42);
    const at::Tensor a = floats(64 * kMiB).fill_(1);
    CHECK(a.sum().item<float>() == 64.f * kMiB / 4);
    device.endWarmUp();
  }
  kept = at::Tensor();
  device.synchronize();
  emptyCache();
  device.tidyWarmUp();
  CHECK(reserved() == before);
}

TEST_CASE("what is kept of a warm-up holds its own pages, not those around it") {
  NEEDS_GPU();
  CudaDevice device(0);
  const int64_t before = reservedAtStart(device);
  device.beginWarmUp(0);
  { const at::Tensor a = floats(160 * kMiB), b = floats(160 * kMiB), c = floats(160 * kMiB); }
  device.endWarmUp();
  const int64_t first = reserved();
  at::Tensor kept;
  device.beginWarmUp(384 * kMiB);
  {
    const at::Tensor a = floats(160 * kMiB);
    kept = floats(20 * kMiB).fill_(5);
    const at::Tensor b = floats(160 * kMiB).fill_(6);
  }
  device.endWarmUp();
  const int64_t warm = reserved();
  CHECK(warm == first);  // of the same pages
  device.dropWarmUp();
  CHECK(reserved() == warm);
  auto arena = device.makeSlab(shapeOfBytes(288 * kMiB));
  CHECK(reserved() == warm);  // all of its pages are the warm-up's
  std::string why;
  REQUIRE(arena->enter(0, why));
  const at::Tensor whole = all(*arena).fill_(3);
  arena->leave();
  device.synchronize();
  device.tidyWarmUp();
  CHECK(kept.sum().item<float>() == 5.f * 20 * kMiB / 4);
  CHECK(whole.sum().item<float>() == 3.f * 288 * kMiB / 4);
  CHECK(reserved() <= before + (288 + 64) * kMiB);  // kept lies on two pages at most
  // Its addresses are still those of the segment: a later warm-up lies elsewhere.
  device.beginWarmUp(0);
  const at::Tensor later = floats(160 * kMiB).fill_(7);
  device.endWarmUp();
  CHECK(kept.sum().item<float>() == 5.f * 20 * kMiB / 4);
  CHECK(later.sum().item<float>() == 7.f * 160 * kMiB / 4);
}

TEST_CASE("what PyTorch's cache takes from the driver is made room for where warm-ups lie idle") {
  NEEDS_GPU();
  NEEDS_OTHER_GPUS_EMPTY();
  CudaDevice device(0);
  const int64_t before = reservedAtStart(device);
  device.beginWarmUp(0);
  (void)floats(320 * kMiB).fill_(1);
  device.endWarmUp();
  const int64_t warm = reserved();
  std::vector<at::Tensor> state;
  SECTION("by eager code") {
    for (int i = 0; i < 4; ++i) state.push_back(floats(64 * kMiB).fill_(i));
    CHECK(reserved() <= warm);
    for (int i = 0; i < 4; ++i) CHECK(state[i].sum().item<float>() == 64.f * i * kMiB / 4);
    device.beginWarmUp(0);
    const at::Tensor again = floats(320 * kMiB).fill_(8);
    device.endWarmUp();
    CHECK(again.sum().item<float>() == 8.f * 320 * kMiB / 4);
    for (int i = 0; i < 4; ++i) CHECK(state[i].sum().item<float>() == 64.f * i * kMiB / 4);
  }
  SECTION("but not in the midst of a step") {
    device.beginWarmUp(0);
    const at::Tensor saved = floats(200 * kMiB).fill_(4);
    device.endWarmUp();
    state.push_back(floats(64 * kMiB));
    CHECK(reserved() == warm + 64 * kMiB);
    CHECK(saved.sum().item<float>() == 4.f * 200 * kMiB / 4);
  }
  SECTION("but not while somebody captures") {
    at::cuda::CUDAGraph graph;
    c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromPool(false, 0));
    graph.capture_begin();  // which takes little itself, before it begins
    const int64_t begun = reserved();
    state.push_back(floats(64 * kMiB).fill_(1));
    graph.capture_end();
    CHECK(reserved() == begun + 64 * kMiB);
    graph.replay();
    device.synchronize();
    CHECK(state[0].sum().item<float>() == 64.f * kMiB / 4);
  }
  state.clear();
  device.synchronize();
  emptyCache();
  device.tidyWarmUp();
  CHECK(reserved() == before);
}

TEST_CASE("a warm-up has what a program that was planned has freed since") {
  NEEDS_GPU();
  CudaDevice first(0), second(0);
  (void)reservedAtStart(first);
  const auto warmUp = [](CudaDevice& device, int64_t bytes) {
    device.beginWarmUp(0);
    at::Tensor found = floats(bytes).fill_(1);
    device.endWarmUp();
    return found;
  };
  at::Tensor saved = warmUp(first, 160 * kMiB);  // for its backward
  first.dropWarmUp();
  (void)warmUp(second, 4 * kMiB);
  const int64_t before = reserved();
  saved = at::Tensor();
  (void)warmUp(second, 160 * kMiB);
  CHECK(reserved() == before);
}

TEST_CASE("what the first steps left in PyTorch's cache is given back, once") {
  NEEDS_GPU();
  NEEDS_OTHER_GPUS_EMPTY();
  CudaDevice device(0);
  const int64_t before = reservedAtStart(device);
  const auto ofAStep = [] { (void)floats(256 * kMiB).fill_(1); };
  const auto warmUp = [&] {
    device.beginWarmUp(0);
    (void)floats(40 * kMiB).fill_(1);
    device.endWarmUp();
  };
  const auto replays = [&](int calls) {
    device.synchronize();
    for (int call = 0; call < calls; ++call) device.tidyWarmUp();
    return reserved();
  };
  // How often warm-ups came to an end before depends on the tests that ran: at most 1,023 times.
  int quiets = 0;
  do {
    warmUp();
    ofAStep();
    CHECK(replays(11) >= before + 256 * kMiB);
    REQUIRE(++quiets < 1024);
  } while (replays(4) != before);
  ofAStep();  // a loop that goes on to take it keeps it
  CHECK(replays(100) == before + 256 * kMiB);
  emptyCache();
}

TEST_CASE(
    "a program warms up beside no idle cache of PyTorch's, as one that timed kernels leaves") {
  NEEDS_GPU();
  NEEDS_OTHER_GPUS_EMPTY();
  CudaDevice device(0);
  const int64_t before = reservedAtStart(device);
  // How many pools were made before depends on the tests that ran: at most 1,023.
  int made = 0;
  do {
    emptyCache();  // with it the spare pool
    (void)floats(256 * kMiB).fill_(1);
    CHECK(reserved() >= before + 256 * kMiB);
    device.beginWarmUp(0);
    (void)floats(40 * kMiB).fill_(1);
    device.endWarmUp();
    REQUIRE(++made < 1024);
  } while (reserved() >= before + 256 * kMiB);
  device.synchronize();
  emptyCache();
  CHECK(reserved() == before);
}

TEST_CASE(
    "what is held of a warm-up is given back once it is free, without torch.cuda.empty_cache") {
  NEEDS_GPU();
  CudaDevice device(0);
  const int64_t before = reservedAtStart(device), freeBefore = freeMemory();
  std::vector<at::Tensor> held;
  for (int round = 0; round < 2; ++round) {
    device.beginWarmUp(0);
    for (int64_t bytes : {1000l, 30 * kMiB, 70 * kMiB}) held.push_back(floats(bytes).fill_(1));
    device.endWarmUp();
    device.dropWarmUp();
  }
  device.synchronize();
  for (int call = 0; call < 10; ++call) device.tidyWarmUp();
  CHECK(reserved() >= before + 200 * kMiB);
  for (const at::Tensor& each : held)
    CHECK(each.sum().item<float>() == static_cast<float>(each.numel()));
  emptyCache();
  CHECK(reserved() >= before + 200 * kMiB);
  held.clear();
  CHECK(reserved() >= before + 200 * kMiB);  // in PyTorch's cache, for nobody
  for (int call = 10; call < 16; ++call) device.tidyWarmUp();
  CHECK(reserved() == before);
  CHECK(freeMemory() == freeBefore);
}

TEST_CASE("a warm-up ends while somebody else's allocations are routed to a pool") {
  NEEDS_GPU();
  CudaDevice device(0), other(0);
  device.installAllocator();
  giveBackOthers();
  const int64_t before = reserved();
  device.beginWarmUp(0);
  (void)floats(100 * kMiB);
  device.endWarmUp();
  SECTION("another warm-up's, which is paused for that") {
    other.beginWarmUp(0);
    const at::Tensor first = floats(kMiB);
    device.dropWarmUp();
    const at::Tensor second = floats(kMiB);
    other.endWarmUp();
    CHECK(WarmUpMemory::anyContains(first.data_ptr()));
    CHECK(WarmUpMemory::anyContains(second.data_ptr()));
  }
  SECTION("somebody else's, which is not ours to pause") {
    CUDAAllocator& pytorch = device.allocator().base();
    const auto pool = at::cuda::graph_pool_handle();
    pytorch.beginAllocateToPool(0, pool, [](cudaStream_t) { return false; });
    device.dropWarmUp();
    device.tidyWarmUp();
    // To torch before 2.13 a routed pool is a capture, during which nothing is given back.
    const int64_t kept = reserved() - before;
    CHECK((kept == 0 || kept >= 100 * kMiB));
    pytorch.endAllocateToPool(0, pool);
    pytorch.releasePool(0, pool);
  }
  other.dropWarmUp();
  device.synchronize();
  for (int call = 0; call < 4; ++call) device.tidyWarmUp();
  device.tidyWarmUp();
  CHECK(reserved() == before);
}

TEST_CASE("whoever is out of memory gets that of an ended warm-up, and waits for it") {
  NEEDS_GPU();
  emptyCache();
  CudaDevice device(0);
  device.installAllocator();
  const int64_t most = (freeMemory() - 2048 * kMiB) / (64 * kMiB) * 64 * kMiB;
  at::Tensor taken;
  device.beginWarmUp(0);
  {
    const at::Tensor big = floats(most);
    at::cuda::sleep(kSecond / 4);
    big.fill_(1);
  }
  device.endWarmUp();
  device.dropWarmUp();
  SECTION("eager code") { taken = floats(most).fill_(2); }
  SECTION("an arena") {
    auto arena = cudaPages(0).make(shapeOfBytes(most));  // not by the device that warmed up
    CHECK(arena->bytes() == most);
  }
  SECTION("another warm-up") {
    CudaDevice other(0);
    other.beginWarmUp(0);
    taken = floats(most).fill_(2);
    other.endWarmUp();
  }
  device.synchronize();
  if (taken.defined()) CHECK(taken[-1].item<float>() == 2.f);
  taken = at::Tensor();
  emptyCache();
}
