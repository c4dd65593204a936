// Two GPUs in one process: programs on each, whichever is current, and copies between their arenas.

#include "tests/cuda/pair.h"

#include "runtime/cuda/cuda_pages.h"

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>

#include <thread>

#define NEEDS_TWO_GPUS()                                                                           \
  if (c10::cuda::device_count() < 2) {                                                             \
    WARN("skipped: there are not two CUDA devices");                                               \
    SUCCEED();                                                                                     \
    return;                                                                                        \
  }

using namespace gravure;
using namespace gravure::test;

namespace {

const char* const kDrawing = R"(gravure 1
graph step(%w : Float(64, 64, strides=[64, 1], device=cuda:0) {parameter "w"},
           %x : Float(32, 64, strides=[64, 1], device=cuda:0) {user_input "x"}):
  %y : Float(32, 64, strides=[64, 1], device=cuda:0) = aten::mm(%x, %w)
  %d : Float(32, 64, strides=[64, 1], device=cuda:0), %m : Bool(32, 64, strides=[64, 1], device=cuda:0) = aten::native_dropout(%y, 0.25, True)
  %dt : Float(64, 32, strides=[1, 64], device=cuda:0) = aten::t(%d)
  %g : Float(64, 64, strides=[64, 1], device=cuda:0) = aten::mm(%dt, %x)
  %loss : Float(device=cuda:0) = aten::sum(%d)
  return (%loss {loss}, %g {gradient "w"}, %m {output "m"})
)";

/// A program that was exported on cuda:0, captured and uncaptured on `index`.
struct OnDevice {
  explicit OnDevice(c10::DeviceIndex index)
      : device(c10::kCUDA, index), weight(values({64, 64}, 5).to(device)),
        generator(at::globalContext().defaultGenerator(device)),
        captured(loadWith(kDrawing, {}, index)) {
    RuntimeOptions options;
    options.uncaptured = true;
    reference = loadWith(kDrawing, options, index);
  }

  std::vector<c10::IValue> run(Runtime& runtime, const at::Tensor& x, uint64_t seed) {
    generator.set_current_seed(seed);
    std::vector<c10::IValue> inputs{weight, x};
    inputs.resize(runtime.program().entries[0].inputs.size());
    return runtime.run("step", std::move(inputs));
  }

  /// What differs first, or "".
  std::string step(uint64_t number) {
    const at::Tensor x = values({32, 64}, number).to(device);
    results.clear();
    results = run(*captured, x, number);
    const auto expected = run(*reference, x, number);
    for (size_t i = 0; i < expected.size(); ++i) {
      if (results[i].toTensor().device() != device) return "a result on another device";
      if (!sameBits(results[i].toTensor(), expected[i].toTensor()))
        return "output " + std::to_string(i) + " in step " + std::to_string(number);
    }
    return "";
  }
  const at::Tensor& gradient() const { return results[1].toTensor(); }

  c10::Device device;
  at::Tensor weight;
  at::Generator generator;
  std::unique_ptr<Runtime> captured, reference;
  std::vector<c10::IValue> results;
};

}  // namespace

TEST_CASE("programs on two devices, whichever device is current") {
  NEEDS_TWO_GPUS();
  OnDevice a(0), b(1);
  for (uint64_t step = 0; step < 8; ++step) {
    CAPTURE(step);
    for (const c10::DeviceIndex current : {0, 1}) {
      c10::cuda::CUDAGuard guard(current);
      CHECK(a.step(2 * step + current) == "");
      CHECK(b.step(2 * step + current) == "");
      CHECK(c10::cuda::current_device() == current);
      CHECK(sameBits(a.gradient(), b.gradient().to(kGpu)));
    }
  }
  for (OnDevice* each : {&a, &b}) {
    // One more on a device whose libraries take their workspaces in the first.
    CHECK(each->captured->stats().uncapturedSteps <= 3);
    CHECK(each->captured->stats().captures == 1);
    CHECK(each->captured->remarks().all().empty());
    CHECK(cudaPagesAt(each->gradient().const_data_ptr()) == &cudaPages(each->device.index()));
  }
}

TEST_CASE("law 12: two threads train on two devices at once") {
  NEEDS_TWO_GPUS();
  std::string wrong[2];
  std::vector<std::thread> threads;
  for (const c10::DeviceIndex index : {0, 1}) {
    threads.emplace_back([&wrong, index] {
      for (int round = 0; round < 5 && wrong[index].empty(); ++round) {
        OnDevice each(index);
        for (uint64_t step = 0; step < 12 && wrong[index].empty(); ++step)
          wrong[index] = each.step(100 * round + step);
        if (wrong[index].empty() && each.captured->stats().captures != 1)
          wrong[index] = "not captured";
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong[0] == "");
  CHECK(wrong[1] == "");
}

TEST_CASE("lent results are copied from one device to the other") {
  NEEDS_TWO_GPUS();
  OnDevice a(0), b(1);
  for (uint64_t step = 0; step < 4; ++step) {
    CHECK(a.step(step) == "");
    CHECK(b.step(step) == "");
  }
  const auto check = [&] {
    for (OnDevice* from : {&a, &b}) {
      const c10::Device to(c10::kCUDA, static_cast<c10::DeviceIndex>(1 - from->device.index()));
      const at::Tensor there = from->gradient().to(to, /*non_blocking=*/true);
      CHECK(sameBits(there.cpu(), from->gradient().cpu()));
      // Into an arena, too.
      OnDevice& other = from == &a ? b : a;
      at::Tensor inArena = other.gradient();
      inArena.copy_(from->gradient());
      CHECK(sameBits(inArena.cpu(), from->gradient().cpu()));
    }
  };
  check();  // PyTorch opens the devices to one another at the first copy
  // Pages that come after that are open as well.
  for (OnDevice* each : {&a, &b}) {
    each->results.clear();
    CHECK(each->captured->device().releaseMemory() > 0);
  }
  for (uint64_t step = 4; step < 7; ++step) {
    CHECK(a.step(step) == "");
    CHECK(b.step(step) == "");
  }
  check();
  for (OnDevice* each : {&a, &b}) CHECK(each->captured->stats().captures == 1);
}

TEST_CASE("each device's statistics count its own arenas alone") {
  NEEDS_TWO_GPUS();
  using c10::cuda::CUDACachingAllocator::getDeviceStats;
  CudaDevice a(0), b(1);
  const auto reserved = [](c10::DeviceIndex device) {
    return getDeviceStats(device).reserved_bytes[0].current;
  };
  for (CudaDevice* each : {&a, &b}) each->releaseMemory();  // pools of programs that ended before
  const int64_t first = reserved(0), second = reserved(1);
  ArenaShape shape;
  shape.bytes = int64_t{64} << 20;
  auto slab = b.makeSlab(shape);
  CHECK(reserved(0) == first);
  CHECK(reserved(1) == second + shape.bytes);
  CHECK(a.releaseMemory() == 0);
  CHECK(b.releaseMemory() == shape.bytes);
  slab.reset();
  CHECK(reserved(1) == second);
}
