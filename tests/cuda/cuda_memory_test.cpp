// The allocator that stands before PyTorch's, and the order between streams.

#include "tests/cuda/gpu.h"

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>

#include <thread>

using namespace gravure;
using namespace gravure::test;

namespace {
constexpr int64_t kBytes = 64 * 64 * 4;
}

TEST_CASE("a recording session sees each allocation and where it ends") {
  NEEDS_GPU();
  CudaDevice device(0);
  device.installAllocator();
  const at::Tensor input = values({64, 64}, 0);
  at::Tensor kept;
  AllocationRecord record;
  {
    ArenaSession session(3, kGpu);
    session.enterCall(0);
    at::Tensor first = input + 1;
    kept = input * 2;
    session.enterCall(1);
    (void)(first + 1);
    first = at::Tensor();
    session.leaveCall();
    (void)(input + 1);
    record = session.takeRecord();
  }
  REQUIRE(record.size() == 3);
  REQUIRE(record[0].size() == 2);
  CHECK(record[0][0].bytes == kBytes);
  CHECK(record[0][0].freedAt == 1);
  CHECK(record[0][1].freedAt == -1);
  CHECK(record[0][1].address == kept.data_ptr());
  REQUIRE(record[1].size() == 1);
  CHECK(record[1][0].freedAt == 1);
  CHECK(record[2].empty());
  CHECK(sameBits(kept, input * 2));
  std::thread([&] { kept = at::Tensor(); }).join();
}

TEST_CASE("sessions for other devices are left alone") {
  NEEDS_GPU();
  CudaDevice device(0);
  device.installAllocator();
  ArenaSession session(1, c10::DeviceType::CPU);
  session.enterCall(0);
  const at::Tensor made = at::empty({16}, at::TensorOptions(kGpu));
  CHECK(session.takeRecord()[0].empty());
}

TEST_CASE("recorded and served memory answers as PyTorch's own does") {
  NEEDS_GPU();
  using namespace c10::cuda::CUDACachingAllocator;
  CudaDevice device(0);
  device.installAllocator();
  at::Tensor recorded, served;
  ServePlan plan = planOf({kBytes, kBytes});
  auto slab = device.makeSlab(shapeOf(plan));
  {
    ArenaSession session(1, kGpu);
    session.enterCall(0);
    recorded = at::empty({64, 64}, at::TensorOptions(kGpu));
  }
  {
    ArenaSession session(plan, slab, kGpu);
    session.enterCall(0);
    (void)at::empty({64, 64}, at::TensorOptions(kGpu));
    served = at::empty({64, 64}, at::TensorOptions(kGpu));
  }
  CHECK(served.data_ptr() == slab->base() + kBytes);
  const auto other = c10::cuda::getStreamFromPool(false, 0);
  for (const at::Tensor& tensor : {recorded, served}) {
    tensor.record_stream(other);
    size_t size = 0;
    void* start = getBaseAllocation(tensor.data_ptr(), &size);
    CHECK(start <= tensor.data_ptr());
    CHECK(static_cast<char*>(start) + size >= static_cast<char*>(tensor.data_ptr()) + kBytes);
    CHECK(tensor.storage().data_ptr().get_context() == tensor.data_ptr());
  }
  // A tensor in the arena can grow: its storage asks the allocator it came from.
  served.resize_({256, 256});
  served.fill_(3);
  CHECK(served.data_ptr() != slab->base() + kBytes);
  CHECK(served.sum().item<float>() == 3.f * 256 * 256);
}

TEST_CASE("raw allocations inside a session are given back without complaint") {
  NEEDS_GPU();
  CudaDevice device(0);
  CudaAllocator& allocator = CudaAllocator::install();
  ServePlan plan = planOf({kBytes});
  auto slab = device.makeSlab(shapeOf(plan));
  for (const bool serving : {true, false}) {
    auto session = serving ? std::make_unique<ArenaSession>(plan, slab, device.tensorDevice())
                           : std::make_unique<ArenaSession>(size_t{1}, device.tensorDevice());
    session->enterCall(0);
    void* memory = allocator.raw_allocate(kBytes);
    CHECK((memory == slab->base()) == serving);
    allocator.raw_deallocate(memory);
  }
}

TEST_CASE("a step on another stream waits for the last step") {
  NEEDS_GPU();
  CudaDevice device(0);
  const at::Tensor big = values({4096, 4096}, 0);
  at::Tensor shared = at::zeros({4096, 4096}, at::TensorOptions(kGpu));
  device.synchronize();
  auto arena = device.makeSlab(shapeOf(planOf({kBytes})));
  std::string why;
  REQUIRE(arena->enter(0, why));
  at::Tensor product = big;
  for (int i = 0; i < 30; ++i) product = big.mm(big);
  shared.copy_(product);
  arena->leave();
  const auto other = c10::cuda::getStreamFromPool(false, 0);
  at::Tensor seen;
  {
    c10::cuda::CUDAStreamGuard guard(other);
    REQUIRE(arena->enter(0, why));
    seen = shared.clone();
    arena->leave();
  }
  device.synchronize();
  CHECK(sameBits(seen, product));
}
