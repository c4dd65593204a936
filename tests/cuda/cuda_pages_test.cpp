// The arenas of a GPU share pages: their memory, their statistics, their order between streams.

#include "tests/cuda/pair.h"

#include "runtime/arena/arena_pages.h"
#include "runtime/cuda/cuda_pages.h"

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAGuard.h>

#include <chrono>
#include <thread>

using namespace gravure;
using namespace gravure::test;
using namespace c10::cuda::CUDACachingAllocator;

namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

/// kLarge on n x n matrices.
std::string large(int64_t n) {
  std::string text = kLarge;
  const std::string size = std::to_string(n);
  for (size_t at = 0; (at = text.find("4096", at)) != std::string::npos; at += size.size())
    text.replace(at, 4, size);
  return text;
}

int64_t reserved() { return getDeviceStats(0).reserved_bytes[0].current; }
int64_t allocated() { return getDeviceStats(0).allocated_bytes[0].current; }

ArenaShape shapeOfBytes(int64_t bytes) {
  ArenaShape shape;
  shape.bytes = bytes;
  return shape;
}

}  // namespace

TEST_CASE("programs of several sizes take the memory of the largest") {
  NEEDS_GPU();
  REQUIRE(cudaPages(0).bytes() == 0);
  int64_t sum = 0, largest = 0;
  {
    std::vector<std::unique_ptr<Pair>> pairs;
    for (int64_t n : {2048, 4096, 3072})
      pairs.push_back(std::make_unique<Pair>(large(n), std::vector<int64_t>{n, n}));
    for (uint64_t step = 0; step < 8; ++step) {
      for (auto& pair : pairs) {
        CHECK(pair->step(step) == "");
        pair->results.clear();
      }
    }
    for (auto& pair : pairs) {
      sum += pair->captured->stats().arenaBytes;
      largest = std::max(largest, pair->captured->stats().arenaBytes);
      CHECK(pair->captured->stats().uncapturedSteps == 2);
      CHECK(pair->captured->stats().captures == 1);
    }
    WARN("arenas: " << sum / kMiB << " MiB in all, " << largest / kMiB << " MiB the largest, "
                    << cudaPages(0).bytes() / kMiB << " MiB mapped");
    CHECK(cudaPages(0).bytes() <= largest + 34 * kMiB);
    CHECK(sum > largest + 100 * kMiB);
  }
  CHECK(cudaPages(0).bytes() == 0);
}

TEST_CASE("a lent gradient keeps its bits while another program runs on the pages beside it") {
  NEEDS_GPU();
  Pair a(kLarge, {4096, 4096}), b(large(3072), {3072, 3072});
  for (uint64_t step = 0; step < 4; ++step) {
    CHECK(a.step(step) == "");
    a.results.clear();
    CHECK(b.step(step) == "");
    b.results.clear();
  }
  for (uint64_t step = 4; step < 8; ++step) {
    CHECK(a.step(step) == "");
    const at::Tensor bits = a.results[1].toTensor().clone();
    CHECK(cudaPagesAt(a.results[1].toTensor().const_data_ptr()) != nullptr);
    for (int i = 0; i < 2; ++i) {
      CHECK(b.step(10 * step + i) == "");
      b.results.clear();
    }
    CHECK(sameBits(a.results[1].toTensor(), bits));
    a.results.clear();
  }
  for (Pair* pair : {&a, &b}) {
    CHECK(pair->captured->stats().uncapturedSteps == 2);
    CHECK(pair->captured->stats().captures == 1);  // pages moved, addresses did not
  }
}

TEST_CASE("memory is given back on request, and graphs replay in what comes in its place") {
  NEEDS_GPU();
  Pair pair(kLarge, {4096, 4096});
  for (uint64_t step = 0; step < 5; ++step) CHECK(pair.step(step) == "");
  pair.results.clear();
  const int64_t before = reserved(), arena = cudaPages(0).bytes();
  CHECK(pair.captured->device().releaseMemory() == arena);
  CHECK(cudaPages(0).bytes() == 0);
  CHECK(reserved() == before - arena);
  // Somebody else takes the memory, so that other pages come.
  const at::Tensor taken = at::full({arena / 8}, 3.0, at::TensorOptions(kGpu).dtype(at::kFloat));
  for (uint64_t step = 5; step < 8; ++step) CHECK(pair.step(step) == "");
  CHECK(pair.captured->stats().captures == 1);
  CHECK(pair.captured->stats().uncapturedSteps == 2);
}

TEST_CASE("statistics and snapshots of PyTorch count each page once") {
  NEEDS_GPU();
  emptyCache();
  CudaDevice device(0);
  CudaAllocator::install();
  resetPeakStats(0);
  const int64_t reservedBefore = reserved(), allocatedBefore = allocated();
  const size_t segments = snapshot().segments.size();
  auto a = device.makeSlab(shapeOfBytes(100 * kMiB));
  auto b = device.makeSlab(shapeOfBytes(70 * kMiB));  // on a's pages
  const int64_t pages = cudaPages(0).bytes();
  CHECK(pages <= 134 * kMiB);
  CHECK(reserved() == reservedBefore + pages);
  CHECK(allocated() == allocatedBefore + pages);
  int64_t counted = 0;
  const SnapshotInfo info = snapshot();
  for (size_t i = segments; i < info.segments.size(); ++i) {
    CHECK(cudaPagesAt(reinterpret_cast<void*>(info.segments[i].address)) != nullptr);
    counted += static_cast<int64_t>(info.segments[i].total_size);
  }
  // What NCCL would register must not be there: other pages will lie at these addresses.
  CHECK(counted == (torch_private::kNcclRegistersSnapshots ? 0 : pages));
  REQUIRE_FALSE(info.external_annotations.empty());
  CHECK(info.external_annotations.back().metadata_.at("name") == "gravure arena");
  a.reset();
  b.reset();
  CHECK(reserved() == reservedBefore);
  CHECK(getDeviceStats(0).reserved_bytes[0].peak == reservedBefore + pages);
  resetPeakStats(0);
  CHECK(getDeviceStats(0).reserved_bytes[0].peak == reservedBefore);
  CHECK(snapshot().segments.size() == segments);
}

TEST_CASE("without memory for it an arena says how much is missing") {
  NEEDS_GPU();
  CudaDevice device(0);
  const int64_t before = cudaPages(0).bytes();
  CHECK_THROWS_WITH(device.makeSlab(shapeOfBytes(int64_t{1} << 40)),
                    Catch::Contains("CUDA out of memory: the arena needs 1048576 MiB more") &&
                        Catch::Contains("of them are missing"));
  CHECK(cudaPages(0).bytes() == before);
  // PyTorch's cache is no reason to fail.
  size_t free = 0, total = 0;
  C10_CUDA_CHECK(cudaMemGetInfo(&free, &total));
  const auto most = static_cast<int64_t>(free) - 2048 * kMiB;
  (void)at::empty({most}, at::TensorOptions(kGpu).dtype(at::kByte));
  auto arena = device.makeSlab(shapeOfBytes(most / 2));
  CHECK(arena->bytes() == most / 2);
}

TEST_CASE("the share of the memory that PyTorch may take binds the arenas, too") {
  NEEDS_GPU();
  CudaDevice device(0);
  emptyCache();
  struct Limit {
    explicit Limit(double share) { setMemoryFraction(share, 0); }
    ~Limit() { setMemoryFraction(1.0, 0); }
  } limit(0.05);
  const int64_t before = reserved();
  CHECK_THROWS_WITH(device.makeSlab(shapeOfBytes(20'000 * kMiB)), Catch::Contains("are missing"));
  CHECK(reserved() == before);
  auto arena = device.makeSlab(shapeOfBytes(64 * kMiB));
  CHECK(reserved() == before + 64 * kMiB);
}

TEST_CASE("what lies in an arena is not shared with another process") {
  NEEDS_GPU();
  CudaDevice device(0);
  auto arena = device.makeSlab(shapeOfBytes(kMiB));
  CHECK_THROWS_WITH(shareIpcHandle(arena->base() + 512), Catch::Contains("share a clone() of it"));
  size_t bytes = 0;
  CHECK(getBaseAllocation(arena->base() + 512, &bytes) == arena->base());
  CHECK(bytes == kMiB);
}

TEST_CASE("a program on another stream comes after the work on the pages that they share") {
  NEEDS_GPU();
  CudaDevice device(0);
  const int64_t bytes = 64 * kMiB;
  auto a = device.makeSlab(shapeOfBytes(bytes)), b = device.makeSlab(shapeOfBytes(bytes));
  const auto on = [&](const std::shared_ptr<Slab>& arena) {
    cudaPages(0).retain(arena->base());
    c10::DataPtr memory(arena->base(), arena->base(), CudaAllocator::deleter(), kGpu);
    c10::Storage storage(c10::Storage::use_byte_size_t(), bytes, std::move(memory), nullptr, false);
    return at::empty({0}, at::TensorOptions(kGpu)).set_(storage, 0, {bytes / 4}, {1});
  };
  const at::Tensor ofA = on(a), ofB = on(b), big = values({4096, 4096}, 0);
  device.synchronize();
  const auto first = c10::cuda::getStreamFromPool(false, 0),
             second = c10::cuda::getStreamFromPool(false, 0);
  std::string why;
  at::Tensor read;
  {
    c10::cuda::CUDAStreamGuard guard(first);
    REQUIRE(a->enter(0, why));
    ofA.fill_(1);
    at::Tensor slow = big;
    for (int i = 0; i < 30; ++i) slow = at::mm(slow, big).mul_(1e-2);
    ofA.add_(slow.sum().mul_(0));
    read = ofA.clone();
    a->leave();
  }
  {
    c10::cuda::CUDAStreamGuard guard(second);
    REQUIRE(b->enter(0, why));
    ofB.fill_(2);
    b->leave();
  }
  device.synchronize();
  CHECK(sameBits(read, at::ones_like(read)));
  CHECK(sameBits(ofA, ofB));  // the same pages, at two addresses
}

TEST_CASE("an arena that goes during a capture does not break it", "[law12]") {
  NEEDS_GPU();
  CudaDevice device(0);
  const at::Tensor input = values({64, 64}, 0);
  auto other = device.makeSlab(shapeOfBytes(8 * kMiB)), third = device.makeSlab(shapeOfBytes(kMiB));
  std::string why;
  REQUIRE(other->enter(0, why));
  other->leave();
  const ServePlan plan = planOf({64 * 64 * 4, 64 * 64 * 4});
  auto arena = device.makeSlab(shapeOf(plan));
  ArenaSession session(plan, arena, kGpu);
  session.enterCall(0);
  auto capture = device.beginCapture({});
  other.reset();
  std::thread([&] { third.reset(); }).join();
  auto another = device.makeSlab(shapeOfBytes(200 * kMiB));
  torch::jit::Stack stack{input};
  const Call call = callOf([](torch::jit::Stack& s) { s[0] = at::relu(s[0].toTensor() * 2); });
  capture->call(call, c10::IValue(), stack);
  auto executable = capture->finish();
  executable->replay();
  CHECK(sameBits(stack.at(0).toTensor(), at::relu(input * 2)));
}

TEST_CASE("what an arena of 4 GiB costs to make, to move to shared pages and to give back") {
  NEEDS_GPU();
  CudaDevice device(0);
  using Clock = std::chrono::steady_clock;
  const auto since = [](Clock::time_point begin) {
    return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
  };
  auto begin = Clock::now();
  auto a = device.makeSlab(shapeOfBytes(4096 * kMiB));
  const double made = since(begin);
  begin = Clock::now();
  auto b = device.makeSlab(shapeOfBytes(4096 * kMiB));
  const double shared = since(begin);
  std::string why;
  begin = Clock::now();
  for (int step = 0; step < 1000; ++step) {
    REQUIRE(a->enter(0, why));
    a->leave();
  }
  const double entered = since(begin);
  begin = Clock::now();
  a.reset();
  b.reset();
  WARN("new pages " << made << " ms, shared pages " << shared << " ms, given back " << since(begin)
                    << " ms; enter and leave " << entered << " us");
  CHECK(cudaPages(0).bytes() == 0);
}
