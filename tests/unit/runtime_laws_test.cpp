// The laws of docs/design.md that need no GPU, each found by its number.
#include "runtime/arena_session.h"
#include "runtime/host_slab.h"
#include "tests/unit/runtime_fixture.h"

#include <atomic>
#include <thread>

using namespace gravure;

namespace {

const char* const kForwardBackward = R"(gravure 1
graph forward(%w : Float(4, 4, strides=[4, 1], device=cpu) {parameter "w"},
              %x : Float(8, 4, strides=[4, 1], device=cpu) {user_input "x"}):
  %xs : Float(8, 4, strides=[4, 1], device=cpu) = cudagraph::stage(%x)
  %a.out : Float(8, 4, strides=[4, 1], device=cpu), %m.out : Bool(8, 4, strides=[4, 1], device=cpu), %s.out : Float(device=cpu) = cudagraph::launch[index=0, tags=["static: parameter", "staged: user input"]](%w, %xs)
    block0(%w.0 : Float(4, 4, strides=[4, 1], device=cpu), %xs.0 : Float(8, 4, strides=[4, 1], device=cpu)):
      %wt : Float(4, 4, strides=[1, 4], device=cpu) = aten::t(%w.0)
      %y : Float(8, 4, strides=[4, 1], device=cpu) = aten::mm(%xs.0, %wt)
      %a : Float(8, 4, strides=[4, 1], device=cpu) = aten::tanh(%y)
      %d : Float(8, 4, strides=[4, 1], device=cpu), %m : Bool(8, 4, strides=[4, 1], device=cpu) = aten::native_dropout(%a, 0.5, True)
      %s : Float(device=cpu) = aten::sum(%d)
      -> (%a, %m, %s)
  %s.own : Float(device=cpu) = cudagraph::own(%s.out)
  return (%s.own {loss}, %a.out {saved "a"}, %m.out {saved "m"}, %xs {saved "x"})
graph backward(%a : Float(8, 4, strides=[4, 1], device=cpu) {saved "a"},
               %m : Bool(8, 4, strides=[4, 1], device=cpu) {saved "m"},
               %x : Float(8, 4, strides=[4, 1], device=cpu) {saved "x"},
               %g : Float(device=cpu) {tangent "loss"}):
  %gs : Float(device=cpu) = cudagraph::stage(%g)
  %gw.out : Float(4, 4, strides=[4, 1], device=cpu) = cudagraph::launch[index=0, tags=["static: saved value", "static: saved value", "static: saved value", "staged: tangent"]](%a, %m, %x, %gs)
    block0(%a.0 : Float(8, 4, strides=[4, 1], device=cpu), %m.0 : Bool(8, 4, strides=[4, 1], device=cpu), %x.0 : Float(8, 4, strides=[4, 1], device=cpu), %gs.0 : Float(device=cpu)):
      %e : Float(8, 4, strides=[0, 0], device=cpu) = aten::expand(%gs.0, [8, 4])
      %gd : Float(8, 4, strides=[4, 1], device=cpu) = aten::native_dropout_backward(%e, %m.0, 2.)
      %ga : Float(8, 4, strides=[4, 1], device=cpu) = aten::tanh_backward(%gd, %a.0)
      %gt : Float(4, 8, strides=[1, 4], device=cpu) = aten::t(%ga)
      %gw : Float(4, 4, strides=[4, 1], device=cpu) = aten::mm(%gt, %x.0)
      -> (%gw)
  %gw.own : Float(4, 4, strides=[4, 1], device=cpu) = cudagraph::own(%gw.out)
  return (%gw.own {gradient "w"})
)";

const char* const kScaled = R"(gravure 1
graph step(%w : Float(4, strides=[1], device=cpu) {parameter "w"}, %n : int {symint "s0"}):
  %y.out : Float(4, strides=[1], device=cpu) = cudagraph::launch[index=0, tags=["static: parameter", "guarded: s0"]](%w, %n)
    block0(%w.0 : Float(4, strides=[1], device=cpu), %n.0 : int):
      %y : Float(4, strides=[1], device=cpu) = aten::mul.Scalar(%w.0, %n.0)
      -> (%y)
  %y.own : Float(4, strides=[1], device=cpu) = cudagraph::own(%y.out)
  return (%y.own {output "y"})
)";

const char* const kIllegal = R"(gravure 1
graph step(%w : Float(4, strides=[1], device=cpu) {parameter "w"}, %b : Float(4, strides=[1], device=cpu) {buffer "b"}):
  %y.out : Float(4, strides=[1], device=cpu), %b2.out : Float(4, strides=[1], device=cpu) = cudagraph::launch[index=0](%w, %b)
    block0(%w.0 : Float(4, strides=[1], device=cpu), %b.0 : Float(4, strides=[1], device=cpu)):
      %r : Float(4, strides=[1], device=cpu) = aten::rand_like(%w.0)
      %b2 : Float(4, strides=[1], device=cpu) = aten::add_.Tensor(%b.0, %r)
      %s : Float(device=cpu) = aten::sum(%w.0)
      %n : float = aten::_local_scalar_dense(%s) @"model.py:7" in "gate"
      %y : Float(4, strides=[1], device=cpu) = aten::mul.Tensor(%b2, %n)
      -> (%y, %b2)
  %y.own : Float(4, strides=[1], device=cpu) = cudagraph::own(%y.out)
  return (%y.own {output "y"}, %b2.out {mutation %b})
)";

/// A training step on a runtime and on the uncaptured path, with the same data and random state.
struct SideBySide {
  std::unique_ptr<Runtime> runtime, reference;
  at::Tensor w = at::randn({8, 4}).set_requires_grad(true);
  at::Tensor b = at::zeros({8}), referenceB = at::zeros({8});

  explicit SideBySide(RuntimeOptions options = {})
      : runtime(makeRuntime(kTrainingStep, std::move(options))),
        reference(makeReference(kTrainingStep)) {}

  /// True if results, buffer and random state agree in bits. Drops the last results, as training does.
  bool step() {
    last.clear();
    const at::Tensor x = at::randn({16, 4}), state = rngState();
    const auto expected = reference->run("step", {w, referenceB, x});
    const at::Tensor after = rngState();
    setRngState(state);
    last = runtime->run("step", {w, b, x});
    return sameBits(last, expected) && sameBits(rngState(), after) && sameBits(b, referenceB);
  }
  std::vector<c10::IValue> last;
};

std::vector<c10::IValue> backwardInputs(const std::vector<c10::IValue>& forward) {
  return {forward[1], forward[2], forward[3], at::ones({})};
}

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
            "parameter \"w\" (input 0 of step): expected dtype Float, got dtype Double"));
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

TEST_CASE("results stay where they are with their bits, also after the runtime", "[law5]") {
  const auto policy = GENERATE(ResultPolicy::Owned, ResultPolicy::Copied);
  RuntimeOptions options;
  options.results = policy;
  std::vector<std::vector<c10::IValue>> results;
  std::vector<at::Tensor> copies;
  {
    SideBySide pair(options);
    for (int step = 0; step < 8; ++step) {
      CHECK(pair.step());
      results.push_back(pair.last);
      copies.push_back(pair.last[1].toTensor().clone());
      CHECK(!inHostArena(pair.last[0].toTensor().const_data_ptr()));
      if (policy == ResultPolicy::Copied)
        CHECK(!inHostArena(pair.last[1].toTensor().const_data_ptr()));
    }
    // The gradient of the first captured step was lent, and held: one step more ran uncaptured.
    CHECK(pair.runtime->stats().uncapturedSteps == (policy == ResultPolicy::Owned ? 3 : 2));
    CHECK((pair.runtime->remarks().count("result-held") > 0) == (policy == ResultPolicy::Owned));
  }
  for (size_t step = 0; step < results.size(); ++step)
    CHECK(sameBits(results[step][1].toTensor(), copies[step]));
}

TEST_CASE("a gradient that nobody holds is lent without a copy", "[law5]") {
  SideBySide pair;
  at::Tensor part;  // a view of a gradient holds it, too
  for (int step = 0; step < 8; ++step) {
    CAPTURE(step);
    if (step == 6) part = at::Tensor();
    CHECK(pair.step());
    const at::Tensor gradient = pair.last[1].toTensor();
    const bool lent = step >= 2 && step < 5;
    CHECK(inHostArena(gradient.const_data_ptr()) == lent);
    const auto loss = static_cast<int64_t>(pair.last[0].toTensor().nbytes());
    const auto all = loss + static_cast<int64_t>(gradient.nbytes());
    if (lent) CHECK(pair.runtime->stats().copiedResultBytes == loss);
    if (step >= 6) CHECK(pair.runtime->stats().copiedResultBytes == all);
    if (step == 4) part = gradient.select(0, 1);
    pair.last.clear();
  }
  CHECK(pair.runtime->stats().uncapturedSteps == 3);
  CHECK(pair.runtime->remarks().count("arena-anew") == 0);
}

TEST_CASE("a gradient that is held for long leaves the arena to its holder", "[law5]") {
  const int64_t slabs = liveHostSlabs();
  {
    SideBySide pair;
    for (int step = 0; step < 3; ++step) CHECK(pair.step());
    const at::Tensor held = pair.last[1].toTensor(), bits = held.clone();
    for (int step = 3; step < 8; ++step) CHECK(pair.step());
    CHECK(sameBits(held, bits));
    CHECK(pair.runtime->stats().uncapturedSteps == 3);
    CHECK(pair.runtime->remarks().count("arena-anew") == 1);
    CHECK(liveHostSlabs() == slabs + 2);
  }
  CHECK(liveHostSlabs() == slabs);
}

TEST_CASE("static results lie at one address, with each step's bits", "[law5]") {
  RuntimeOptions options;
  options.results = ResultPolicy::Static;
  SideBySide pair(options);
  std::vector<at::Tensor> kept;
  for (int step = 0; step < 8; ++step) {
    // A step off the captured path writes to the same place.
    if (step == 5) pair.w = pair.w.detach().clone();
    CHECK(pair.step());
    if (step < 2) continue;
    const bool same = kept.empty() || pair.last[1].toTensor().is_same(kept.back());
    CHECK(same);
    kept.push_back(pair.last[1].toTensor());
    CHECK(pair.runtime->stats().copiedResultBytes == 0);
  }
  CHECK(pair.runtime->stats().uncapturedSteps == 3);
  const at::Tensor bits = kept.back().clone();
  pair.runtime.reset();
  CHECK(sameBits(kept.back(), bits));
}

TEST_CASE("a forward before the last one's backward overwrites nothing", "[law5]") {
  auto runtime = makeRuntime(kForwardBackward);
  auto reference = makeReference(kForwardBackward);
  const at::Tensor w = at::randn({4, 4});
  const auto pairOf = [&](const at::Tensor& x) {
    const at::Tensor state = rngState();
    auto expected = reference->run("forward", {w, x});
    setRngState(state);
    auto got = runtime->run("forward", {w, x});
    CHECK(sameBits(got, expected));
    return std::pair(std::move(got), std::move(expected));
  };
  const auto backward = [&](auto& pair) {
    const auto expected = reference->run("backward", backwardInputs(pair.second));
    CHECK(sameBits(runtime->run("backward", backwardInputs(pair.first)), expected));
    pair.first.clear();
  };
  for (int round = 0; round < 6; ++round) {
    CAPTURE(round);
    auto first = pairOf(at::randn({8, 4}));
    auto second = pairOf(at::randn({8, 4}));
    if (round % 2) {
      backward(second);
      backward(first);
    } else {
      backward(first);
      backward(second);
    }
  }
  CHECK(runtime->remarks().count("saved-values-held") >= 1);
  CHECK(runtime->stats().replays > 0);
}

TEST_CASE("saved values are lent once, and outlive the runtime", "[law5]") {
  const int64_t slabs = liveHostSlabs();
  auto runtime = makeRuntime(kForwardBackward);
  const at::Tensor w = at::randn({4, 4}), x = at::randn({8, 4});
  for (int step = 0; step < 2; ++step) {
    auto saved = runtime->run("forward", {w, x});
    runtime->run("backward", backwardInputs(saved));
  }
  auto saved = runtime->run("forward", {w, x});
  REQUIRE(inHostArena(saved[1].toTensor().const_data_ptr()));
  const at::Tensor copy = saved[1].toTensor().clone();
  runtime->run("backward", backwardInputs(saved));
  CHECK_THROWS_WITH(runtime->run("backward", backwardInputs(saved)),
                    Catch::Contains("lent for one run"));
  saved.clear();
  saved = runtime->run("forward", {w, x});
  const at::Tensor kept = saved[1].toTensor(), bits = kept.clone();
  saved.clear();
  runtime.reset();
  CHECK(sameBits(kept, bits));
  CHECK(liveHostSlabs() == slabs + 1);
  const_cast<at::Tensor&>(kept) = at::Tensor();
  CHECK(liveHostSlabs() == slabs);
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
