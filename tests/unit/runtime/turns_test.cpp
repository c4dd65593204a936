// Steps on several threads, and steps inside of steps.
#include "runtime/device/arena_session.h"
#include "runtime/device/step_scope.h"
#include "tests/unit/device_fixture.h"
#include "tests/unit/law_fixture.h"

#include <ATen/ThreadLocalState.h>
#include <torch/library.h>

#include <atomic>
#include <functional>
#include <thread>

using namespace gravure;

namespace {

/// What test_turns::call does, next to handing its operand on.
std::function<void()>& whenCalled() {
  static std::function<void()> call;
  return call;
}

at::Tensor callTest(const at::Tensor& x) {
  if (whenCalled()) whenCalled()();
  return x.clone();
}

TORCH_LIBRARY(test_turns, m) {
  m.def("call(Tensor x) -> Tensor");
  m.impl("call", c10::DispatchKey::CompositeExplicitAutograd, &callTest);
}

struct Calling {
  explicit Calling(std::function<void()> call) { whenCalled() = std::move(call); }
  ~Calling() { whenCalled() = nullptr; }
};

/// A partition, a call on the host, and another partition.
const char* const kCalling = R"(gravure 1
graph step(%w : Float(4, strides=[1], device=cpu) {parameter "w"}):
  %y.out : Float(4, strides=[1], device=cpu) = cudagraph::launch[index=0, tags=["static: parameter"]](%w)
    block0(%w.0 : Float(4, strides=[1], device=cpu)):
      %y : Float(4, strides=[1], device=cpu) = aten::mul.Scalar(%w.0, 2)
      -> (%y)
  %h : Float(4, strides=[1], device=cpu) = test_turns::call(%y.out)
  %z.out : Float(4, strides=[1], device=cpu) = cudagraph::launch[index=1, tags=["static: host node"]](%h)
    block0(%h.1 : Float(4, strides=[1], device=cpu)):
      %z : Float(4, strides=[1], device=cpu) = aten::add.Tensor(%h.1, %h.1)
      -> (%z)
  %z.own : Float(4, strides=[1], device=cpu) = cudagraph::own(%z.out)
  return (%z.own {output "z"})
)";

}  // namespace

TEST_CASE("an operator may run the program that it is part of", "[law1][law12]") {
  auto runtime = makeRuntime(kCalling);
  const at::Tensor w = at::randn({4}), inner = at::randn({4});
  int depth = 0, insides = 0;
  const Calling calling([&] {
    if (depth >= 2) return;
    ++depth;
    const at::Tensor given = inner + depth;
    CHECK(sameBits(runtime->run("step", {given})[0].toTensor(), given * 2 + given * 2));
    --depth;
    ++insides;
  });
  for (int step = 0; step < 8; ++step) {
    CAPTURE(step);
    CHECK(sameBits(runtime->run("step", {w})[0].toTensor(), w * 2 + w * 2));
  }
  CHECK(insides == 2 * 8);
  CAPTURE(remarksOf(*runtime));
  CHECK(countIn(*runtime, PartitionState::Captured) == 2);
  CHECK(runtime->stats().replays == 2 * 6);
  CHECK(runtime->remarks().count("step-inside") == 1);
}

TEST_CASE("an operator may run another program, whatever that has captured", "[law1][law12]") {
  auto outer = makeRuntime(kCalling);
  SideBySide pair;
  for (int step = 0; step < 4; ++step) CHECK(pair.step());
  const auto replays = pair.runtime->stats().replays;
  const at::Tensor w = at::randn({4});
  {
    const Calling calling([&] { CHECK(pair.step()); });
    for (int step = 0; step < 8; ++step)
      CHECK(sameBits(outer->run("step", {w})[0].toTensor(), w * 2 + w * 2));
  }
  CHECK(pair.runtime->stats().replays == replays);
  CHECK(pair.step());
  CHECK(pair.runtime->stats().replays == replays + 2);
}

TEST_CASE("a backward inside of a step runs on autograd's thread, and waits for nobody",
          "[law12]") {
  auto runtime = makeRuntime(kCalling);
  const at::Tensor w = at::randn({4}), inner = at::randn({4});
  std::atomic<int> depth = 0, insides = 0;
  const Calling calling([&] {
    if (depth > 0) return;
    ++depth;
    // As autograd's engine takes a thread's state to its own.
    const at::ThreadLocalState state;
    std::thread([&] {
      const at::ThreadLocalStateGuard guard(state);
      insides += sameBits(runtime->run("step", {inner})[0].toTensor(), inner * 2 + inner * 2);
    }).join();
    --depth;
  });
  for (int step = 0; step < 8; ++step)
    CHECK(sameBits(runtime->run("step", {w})[0].toTensor(), w * 2 + w * 2));
  CHECK(insides == 8);
  CHECK_FALSE(StepScope::isInside());
}

TEST_CASE("an operator cannot end the program that it is part of", "[law9]") {
  auto runtime = makeRuntime(kCalling);
  const at::Tensor w = at::randn({4});
  {
    const Calling calling([&] { runtime->shutdown(); });
    CHECK_THROWS_WITH(runtime->run("step", {w}), Catch::Contains("from inside of a running step"));
  }
  for (int step = 0; step < 4; ++step)
    CHECK(sameBits(runtime->run("step", {w})[0].toTensor(), w * 2 + w * 2));
}

TEST_CASE("threads take turns with one program", "[law12]") {
  auto runtime = makeRuntime(kCalling);
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      const at::Tensor w = at::full({4}, t + 1.F);
      for (int step = 0; step < 100; ++step)
        wrong += !sameBits(runtime->run("step", {w})[0].toTensor(), w * 2 + w * 2);
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
  CHECK(runtime->stats().steps == 400);
}

TEST_CASE("a program is ended while a thread runs it: that step is whole, the next one an error",
          "[law9][law12]") {
  const int64_t slabs = liveHostSlabs();
  for (int round = 0; round < 20; ++round) {
    auto runtime = makeRuntime(kCalling);
    std::atomic<int> steps = 0, wrong = 0;
    std::string error;
    std::thread thread([&] {
      const at::Tensor w = at::randn({4});
      try {
        for (;; ++steps) wrong += !sameBits(runtime->run("step", {w})[0].toTensor(), w * 2 + w * 2);
      } catch (const c10::Error& thrown) {
        error = thrown.what_without_backtrace();
      }
    });
    while (steps < 5 + round) std::this_thread::yield();
    runtime->shutdown();
    thread.join();
    CHECK(wrong == 0);
    CHECK_THAT(error, Catch::Contains("was shut down"));
  }
  CHECK(liveHostSlabs() == slabs);
}

TEST_CASE("a session answers for its own device, however sessions nest", "[law12]") {
  ArenaSession outer(2, c10::kCPU);
  const ArenaSession gpu(2, c10::Device(c10::kCUDA, 0)), second(2, c10::Device(c10::kCUDA, 1));
  CHECK(ArenaSession::of(c10::kCPU) == &outer);
  CHECK(ArenaSession::of(c10::Device(c10::kCUDA, 0)) == &gpu);
  CHECK(ArenaSession::of(c10::Device(c10::kCUDA, 1)) == &second);
  CHECK(ArenaSession::of(c10::Device(c10::kCUDA, 2)) == nullptr);
  CHECK(ArenaSession::current() == &second);
  outer.enterCall(1);
  int memory = 0;
  outer.noteAllocation(&memory, 64);
  ArenaSession::freed(&memory);
  const AllocationRecord record = outer.takeRecord();
  REQUIRE(record[1].size() == 1);
  CHECK(record[1][0].freedAt == 1);
}

TEST_CASE("a place that another allocation of the step still has is not served", "[law2]") {
  DeviceOnHost device;
  ArenaShape shape;
  shape.bytes = 4096;
  const std::shared_ptr<Slab> slab = device.makeSlab(shape);
  // The recorded run gave the first one back before it made the third.
  const PlannedAllocation first{64, 0, false, true}, second{64, 512, false, true},
      third{128, 0, false, true};
  const ServePlan plan = {{first, second, third}, {first}};
  ArenaSession session(plan, slab);
  const auto serve = [&](const PlannedAllocation& planned) {
    return static_cast<char*>(session.serve(planned.bytes));
  };
  for (const bool freed : {true, false, true}) {
    CAPTURE(freed);
    session.enterCall(0);
    REQUIRE(serve(first) == slab->base());
    CHECK(serve(second) == slab->base() + 512);
    if (freed) ArenaSession::freed(slab->base());
    CHECK(serve(third) == (freed ? slab->base() : nullptr));
    session.enterCall(1);
    CHECK(serve(first) == slab->base());  // each step anew
  }
  CHECK(session.mismatches() == std::vector<int64_t>{0});
}
