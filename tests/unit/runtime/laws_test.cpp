// The laws of docs/design.md that need no GPU, each found by its number.
#include "runtime/device/arena_session.h"
#include "tests/unit/law_fixture.h"

#include <algorithm>
#include <atomic>
#include <thread>

using namespace gravure;

namespace {

std::vector<int64_t>& drawnElsewhere() {
  static std::vector<int64_t> drawn;
  return drawn;
}

/// A number node, so it runs during a capture, too.
int64_t drawElsewhere(int64_t number) {
  std::thread([] {
    const auto bits = at::TensorOptions().dtype(at::kLong);
    drawnElsewhere().push_back(at::randint(int64_t{1} << 62, {1}, bits).item<int64_t>());
  }).join();
  return number;
}

TORCH_LIBRARY(test_laws, m) { m.def("draw_elsewhere(int n) -> int", &drawElsewhere); }

}  // namespace

TEST_CASE("forward and backward share the arena, in the bits of the uncaptured pair", "[law1]") {
  auto runtime = makeRuntime(kForwardBackward);
  auto reference = makeReference(kForwardBackward);
  const at::Tensor w = at::randn({4, 4}).set_requires_grad(true);
  for (int step = 0; step < 8; ++step) {
    CAPTURE(step);
    const at::Tensor x = at::randn({8, 4}), state = rngState();
    auto expected = reference->run("forward", {w, x});
    const auto expectedGradient = reference->run("backward", backwardInputs(expected));
    setRngState(state);
    auto got = runtime->run("forward", {w, x});
    CHECK(sameBits(got, expected));
    CHECK(sameBits(runtime->run("backward", backwardInputs(got)), expectedGradient));
  }
  CHECK(remarksOf(*runtime) == "");
  CHECK(runtime->stats().captures == 2);
  CHECK(runtime->stats().uncapturedSteps == 4);
}

TEST_CASE("a life that ends too early in the plan is found out by poison", "[law1]") {
  // Each buffer in turn is taken to be free just before its last reader.
  size_t buffers = 0, found = 0;
  for (size_t victim = 0;; ++victim) {
    RuntimeOptions options;
    bool shortened = false;
    options.editBuffers = [&](std::vector<Buffer>& all) {
      buffers = all.size();
      if (victim < all.size() && all[victim].end > all[victim].begin + 1) {
        --all[victim].end;
        shortened = true;
      }
    };
    at::manual_seed(3);
    SideBySide pair(options);
    bool right = true;
    try {
      for (int step = 0; step < 4; ++step) right &= pair.step();
    } catch (const c10::Error&) {
      right = false;
    }
    if (victim >= buffers) {
      CHECK(right);  // nothing was shortened
      break;
    }
    if (!shortened) CHECK(right);
    found += !right;
  }
  CHECK(buffers > 8);
  CHECK(found >= 5);
}

TEST_CASE("the caller's tensors are written only where the program writes them", "[law2]") {
  SideBySide pair;
  const at::Tensor kept = pair.w.detach().clone(), x = at::randn({16, 4}), keptX = x.clone();
  const auto wVersion = pair.w._version(), xVersion = x._version();
  for (int step = 0; step < 5; ++step) {
    const auto before = pair.b._version();
    pair.runtime->run("step", {pair.w, pair.b, x});
    CHECK(pair.b._version() == before + 1);
  }
  CHECK(sameBits(pair.w, kept));
  CHECK(sameBits(x, keptX));
  CHECK(pair.w._version() == wVersion);
  CHECK(x._version() == xVersion);
}

TEST_CASE("versions rise where eager's do: not for what batch norm writes", "[law2]") {
  auto runtime = makeRuntime(R"(gravure 1
graph step(%m : Float(3, strides=[1], device=cpu) {buffer "m"},
           %v : Float(3, strides=[1], device=cpu) {buffer "v"},
           %x : Float(5, 3, strides=[3, 1], device=cpu) {user_input "x"}):
  %xs : Float(5, 3, strides=[3, 1], device=cpu) = cudagraph::stage(%x)
  %y.out : Float(5, 3, strides=[3, 1], device=cpu) = cudagraph::launch[index=0, tags=["static: buffer", "static: buffer", "staged: user input"]](%m, %v, %xs)
    block0(%m.0 : Float(3, strides=[1], device=cpu), %v.0 : Float(3, strides=[1], device=cpu), %xs.0 : Float(5, 3, strides=[3, 1], device=cpu)):
      %n : Float(5, 3, strides=[3, 1], device=cpu), %a : Float(3, strides=[1], device=cpu), %b : Float(3, strides=[1], device=cpu) = aten::native_batch_norm(%xs.0, None, None, %m.0, %v.0, True, 0.5, 1e-05)
      %y : Float(5, 3, strides=[3, 1], device=cpu) = aten::neg(%n)
      -> (%y)
  %y.own : Float(5, 3, strides=[3, 1], device=cpu) = cudagraph::own(%y.out)
  return (%y.own {output "y"})
)");
  const at::Tensor m = at::zeros(3), v = at::ones(3), x = at::randn({5, 3});
  const at::Tensor theirs = m.clone(), variance = v.clone();
  const auto before = m._version(), eager = theirs._version();
  for (int step = 0; step < 5; ++step) {
    runtime->run("step", {m, v, x});
    at::native_batch_norm(x, {}, {}, theirs, variance, true, 0.5, 1e-5);
    CHECK(sameBits(m, theirs));
  }
  CHECK(runtime->stats().replays > 0);
  CHECK(m._version() - before == theirs._version() - eager);
}

TEST_CASE("a replay sees values changed in place, and no old address", "[law3]") {
  SideBySide pair;
  for (int step = 0; step < 4; ++step) CHECK(pair.step());
  {
    at::NoGradGuard noGrad;
    pair.w.mul_(2);
  }
  CHECK(pair.step());
  CHECK(pair.runtime->remarks().count("guard-failed") == 0);

  const auto replays = pair.runtime->stats().replays;
  pair.w = at::randn({8, 4});
  CHECK(pair.step());  // uncaptured
  CHECK(pair.runtime->stats().replays == replays);
  REQUIRE(pair.runtime->remarks().count("guard-failed") == 1);
  CHECK_THAT(remarksOf(*pair.runtime),
             Catch::Contains("parameter \"w\" (input 0 of step): expected address"));
  CHECK(pair.step());  // the same address for the second time: captured anew
  CHECK(pair.runtime->remarks().count("captured-anew") == 1);
  CHECK(pair.runtime->stats().captures == 4);
  CHECK(pair.step());
  CHECK(pair.runtime->stats().replays == replays + 4);
}

TEST_CASE("an input laid out in another way is staged", "[law3]") {
  SideBySide pair;
  for (int step = 0; step < 4; ++step) CHECK(pair.step());
  const at::Tensor x = at::randn({4, 16}).t(), state = rngState();
  const auto expected = pair.reference->run("step", {pair.w, pair.referenceB, x});
  setRngState(state);
  const auto replays = pair.runtime->stats().replays;
  pair.last.clear();
  CHECK(sameBits(pair.runtime->run("step", {pair.w, pair.b, x}), expected));
  CHECK(pair.runtime->stats().replays == replays + 2);
}

TEST_CASE("another number takes another path", "[law3]") {
  auto runtime = makeRuntime(kScaled);
  const at::Tensor w = at::randn({4});
  for (int64_t n : {2, 2, 2, 2, 3, 3, 2}) {
    CAPTURE(n);
    CHECK(sameBits(runtime->run("step", {w, n})[0].toTensor(), w * n));
  }
  CHECK(runtime->stats().replays == 3);
  CHECK_THAT(remarksOf(*runtime),
             Catch::Contains("symint \"s0\" (input 1 of step): expected Int 2, found Int 3"));
}

TEST_CASE("inputs of the wrong kind are named before anything runs", "[law3]") {
  SideBySide pair;
  for (int warm = 0; warm < 2; ++warm) {
    const int64_t steps = pair.runtime->stats().steps;
    const auto run = [&](std::vector<c10::IValue> inputs) {
      pair.runtime->run("step", std::move(inputs));
    };
    const at::Tensor x = at::randn({16, 4}), b = pair.b.clone(), state = rngState();
    CHECK_THROWS_WITH(run({pair.w, pair.b}), Catch::Contains("entry 'step' takes 3 inputs, got 2"));
    CHECK_THROWS_WITH(
        run({pair.w, pair.b, at::zeros({15, 4})}),
        Catch::Contains(
            "user_input \"x\" (input 2 of step): expected shape (16, 4), got shape (15, 4)"));
    CHECK_THROWS_WITH(
        run({pair.w.to(at::kDouble), pair.b, x}),
        Catch::Contains(
            "parameter \"w\" (input 0 of step): expected dtype Float, got dtype Double; "
            "after a model was converted compile it again (torch._dynamo.reset())"));
    CHECK_THROWS_WITH(run({pair.w, int64_t{3}, x}),
                      Catch::Contains("buffer \"b\" (input 1 of step): expected a tensor"));
    CHECK_THROWS_WITH(pair.runtime->run("forward", {}),
                      Catch::Contains("no entry 'forward'; it has step"));
    CHECK(pair.runtime->stats().steps == steps);
    CHECK(sameBits(pair.b, b));
    CHECK(sameBits(rngState(), state));
    for (int step = 0; step < 4; ++step) CHECK(pair.step());
  }
}

TEST_CASE("memory that a capture points at is held until the capture is gone", "[law4]") {
  auto runtime = makeRuntime(kScaled);
  at::Tensor w = at::randn({4});
  c10::weak_intrusive_ptr<c10::StorageImpl> watch(w.storage().getWeakStorageImpl());
  for (int step = 0; step < 3; ++step) runtime->run("step", {w, int64_t{2}});
  w = at::Tensor();
  CHECK(!watch.expired());
  runtime->shutdown();
  CHECK(watch.expired());
}

TEST_CASE("backward is captured on saved values of a captured forward alone", "[law3]") {
  auto runtime = makeRuntime(kForwardBackward);
  const at::Tensor w = at::randn({4, 4}), x = at::randn({8, 4});
  auto saved = runtime->run("forward", {w, x});
  for (int run = 0; run < 2; ++run) runtime->run("backward", backwardInputs(saved));
  for (int step = 0; step < 5; ++step) {  // in the first of these, forward is still recorded
    saved.clear();
    saved = runtime->run("forward", {w, x});
    runtime->run("backward", backwardInputs(saved));
  }
  CHECK(runtime->stats().captures == 2);
  CHECK(runtime->stats().replays == 8);
  CHECK(remarksOf(*runtime) == "");
}

TEST_CASE("a fault at any point leaves the step right", "[law6]") {
  const int64_t slabs = liveHostSlabs();
  for (FaultPoint point : {FaultPoint::CaptureBegin, FaultPoint::CaptureCall,
                           FaultPoint::CaptureEnd, FaultPoint::Launch, FaultPoint::Allocation}) {
    for (int64_t countdown = 1; countdown <= 14; ++countdown) {
      CAPTURE(static_cast<int>(point), countdown);
      SideBySide pair;
      bool right = pair.step() && pair.step();
      pair.runtime->device().injectFault(point, countdown);
      for (int step = 0; step < 4; ++step) right &= pair.step();
      CHECK(right);
      const size_t captured = countIn(*pair.runtime, PartitionState::Captured);
      const size_t quarantined = countIn(*pair.runtime, PartitionState::Quarantined);
      const Remarks& remarks = pair.runtime->remarks();
      CHECK(remarks.count("capture-failed") == quarantined);
      // The arena itself, a launch or a capture was hit, or the countdown had not run out.
      CHECK(remarks.all().size() <= 1);
      CHECK((captured + quarantined == 2 || remarks.count("no-arena") == 1));
      if (countdown <= 2) CHECK(remarks.all().size() == 1);
    }
  }
  CHECK(liveHostSlabs() == slabs);
}

TEST_CASE("what another thread draws beside a capture that fails stays drawn", "[law6][law12]") {
  std::string text = kIllegal;
  const std::string first = "      %r : Float";
  REQUIRE(text.find(first) != std::string::npos);
  text.insert(text.find(first), "      %k : int = test_laws::draw_elsewhere(7)\n");
  auto runtime = makeRuntime(text);
  const at::Tensor w = at::rand({4}), b = at::zeros({4});
  drawnElsewhere().clear();
  for (int step = 0; step < 4; ++step) runtime->run("step", {w, b});
  CHECK(runtime->remarks().count("capture-failed") == 1);
  std::vector<int64_t>& drawn = drawnElsewhere();
  REQUIRE(drawn.size() == 5);  // once more in the capture that failed
  std::sort(drawn.begin(), drawn.end());
  CHECK(std::adjacent_find(drawn.begin(), drawn.end()) == drawn.end());
}

TEST_CASE("a call that CUDA refuses in a capture quarantines its partition alone",
          "[law6][law11]") {
  auto runtime = makeRuntime(kIllegal);
  auto reference = makeReference(kIllegal);
  const at::Tensor w = at::rand({4});
  at::Tensor b = at::zeros({4}), rb = at::zeros({4});
  for (int step = 0; step < 6; ++step) {
    const at::Tensor state = rngState();
    const auto expected = reference->run("step", {w, rb});
    const at::Tensor after = rngState();
    setRngState(state);
    CHECK(sameBits(runtime->run("step", {w, b}), expected));
    CHECK(sameBits(rngState(), after));
    CHECK(sameBits(b, rb));
  }
  CHECK(countIn(*runtime, PartitionState::Quarantined) == 1);
  REQUIRE(runtime->remarks().all().size() == 1);
  CHECK(runtime->remarks().all()[0].name == "capture-failed");
  CHECK_THAT(
      runtime->remarks().all()[0].message,
      Catch::Contains("operation not permitted when the host device is capturing: %n = "
                      "aten::_local_scalar_dense at model.py:7: it reads device data on the host"));

  RuntimeOptions options;
  options.requireCapture = true;
  auto strict = makeRuntime(kIllegal, options);
  strict->run("step", {w, b});
  strict->run("step", {w, b});
  CHECK_THROWS_WITH(strict->run("step", {w, b}),
                    Catch::Contains("not captured: operation not permitted"));
}

TEST_CASE("a runtime dies in order, whenever it is asked to", "[law9]") {
  const int64_t slabs = liveHostSlabs();
  for (int steps : {0, 1, 2, 3, 5}) {
    SideBySide pair;
    for (int step = 0; step < steps; ++step) CHECK(pair.step());
    const auto results = pair.last;
    if (steps % 2) pair.runtime->shutdown();
    pair.runtime->shutdown();
    CHECK_THROWS_WITH(pair.step(), Catch::Contains("was shut down"));
    pair.runtime.reset();
    for (const c10::IValue& result : results)
      CHECK(result.toTensor().isfinite().all().item<bool>());
  }
  {
    SideBySide pair;
    for (int step = 0; step < 3; ++step) CHECK(pair.step());
    CHECK_THROWS(pair.runtime->run("step", {pair.w, pair.b, at::randn({1})}));
  }
  CHECK(liveHostSlabs() == slabs);
}

TEST_CASE("other threads allocate and compute during captures and replays", "[law12]") {
  std::atomic<bool> stop{false};
  std::atomic<int64_t> rounds{0}, wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      std::vector<at::Tensor> held;
      while (!stop) {
        at::Tensor full = at::full({1 + (rounds % 4096)}, t);
        wrong += inHostArena(full.const_data_ptr());
        held.push_back(std::move(full));
        if (held.size() > 64) {
          for (const at::Tensor& tensor : held) wrong += !(tensor == t).all().item<bool>();
          held.clear();
        }
        ++rounds;
      }
    });
  }
  for (int run = 0; run < 10; ++run) {
    SideBySide pair;
    for (int step = 0; step < 20; ++step) CHECK(pair.step());
    CHECK(countIn(*pair.runtime, PartitionState::Captured) == 2);
    CHECK(remarksOf(*pair.runtime) == "");
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  CHECK(rounds > 0);
  CHECK(wrong == 0);
}
