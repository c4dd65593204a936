// Law 5: whose memory results are, on the host device.
#include "tests/unit/law_fixture.h"

#include "runtime/results/results.h"

#include <utility>

using namespace gravure;

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
    // The gradient of the first captured step was lent, and is still held.
    CHECK(pair.runtime->stats().uncapturedSteps == (policy == ResultPolicy::Owned ? 7 : 2));
    CHECK((pair.runtime->remarks().count("result-held") > 0) == (policy == ResultPolicy::Owned));
  }
  for (size_t step = 0; step < results.size(); ++step)
    CHECK(sameBits(results[step][1].toTensor(), copies[step]));
}

namespace {

/// Algorithms must be deterministic while it lives.
struct Deterministic {
  Deterministic() { at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false); }
  ~Deterministic() { at::globalContext().setDeterministicAlgorithms(false, /*warn_only=*/false); }
};

}  // namespace

TEST_CASE("copies of results are written once, also where algorithms are deterministic", "[law5]") {
  const at::Tensor base = at::randn({4, 6});
  const std::vector<CopySource> sources = {
      {base.t(), /*asEager=*/false},  // dense, its strides are kept
      {base.select(1, 0).unsqueeze(0), false},
      {base.narrow(1, 0, 2), true},  // of one storage, as eager gives them
      {base.narrow(1, 2, 2), true},
  };
  const Deterministic deterministic;
  const CountedCalls fills("aten::fill_");
  const std::vector<at::Tensor> copies = ownedCopies(sources);
  CHECK(fills.count() == 0);
  at::empty({3});
  CHECK(fills.count() == 1);
  for (size_t i = 0; i < copies.size(); ++i) {
    CAPTURE(i);
    CHECK(sameBits(copies[i].contiguous(), sources[i].tensor.contiguous()));
    CHECK(copies[i].data_ptr() != sources[i].tensor.data_ptr());
  }
  CHECK(copies[0].strides() == base.t().strides());
  CHECK(copies[1].is_contiguous());
  CHECK(copies[2].storage().is_alias_of(copies[3].storage()));
  CHECK(copies[3].strides() == sources[3].tensor.strides());
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

TEST_CASE("gradients that share memory are copies of their own", "[law5]") {
  auto runtime = makeRuntime(R"(gravure 1
graph step(%x : Float(8, 4, strides=[4, 1], device=cpu) {user_input "x"}):
  %xs : Float(8, 4, strides=[4, 1], device=cpu) = cudagraph::stage(%x)
  %g.out : Float(8, 4, strides=[4, 1], device=cpu), %h.out : Float(4, 8, strides=[1, 4], device=cpu) = cudagraph::launch[index=0, tags=["staged: user input"]](%xs)
    block0(%xs.0 : Float(8, 4, strides=[4, 1], device=cpu)):
      %g : Float(8, 4, strides=[4, 1], device=cpu) = aten::tanh(%xs.0)
      %h : Float(4, 8, strides=[1, 4], device=cpu) = aten::t(%g)
      -> (%g, %h)
  %g.own : Float(8, 4, strides=[4, 1], device=cpu), %h.own : Float(4, 8, strides=[1, 4], device=cpu) = cudagraph::own(%g.out, %h.out)
  return (%g.own {gradient "w"}, %h.own {gradient "v"})
)");
  for (int step = 0; step < 5; ++step) {
    CAPTURE(step);
    const at::Tensor x = at::randn({8, 4});
    const auto results = runtime->run("step", {x});
    const at::Tensor g = results[0].toTensor(), h = results[1].toTensor();
    CHECK(sameBits(h, x.tanh().t()));
    if (step < 2) continue;  // as eager returns them
    CHECK(!inHostArena(g.const_data_ptr()));
    CHECK(!inHostArena(h.const_data_ptr()));
    g.add_(1);  // as autograd accumulates
    CHECK(sameBits(h, x.tanh().t()));
  }
  CHECK(runtime->stats().uncapturedSteps == 2);
}

TEST_CASE("a gradient that is held for long leaves the arena to its holder", "[law5]") {
  const int64_t slabs = liveHostSlabs();
  {
    SideBySide pair;
    for (int step = 0; step < 3; ++step) CHECK(pair.step());
    const at::Tensor held = pair.last[1].toTensor(), bits = held.clone();
    for (int step = 3; step < 24; ++step) CHECK(pair.step());
    CHECK(sameBits(held, bits));
    CHECK(pair.runtime->stats().uncapturedSteps == 2 + 16);
    CHECK(pair.runtime->remarks().count("arena-anew") == 1);
    CHECK(liveHostSlabs() == slabs + 2);
  }
  CHECK(liveHostSlabs() == slabs);
}

TEST_CASE("without memory for a second arena the first one is kept", "[law5][law6]") {
  SideBySide pair;
  for (int step = 0; step < 3; ++step) CHECK(pair.step());
  at::Tensor held = pair.last[1].toTensor();
  const at::Tensor bits = held.clone();
  pair.runtime->device().injectFault(FaultPoint::Allocation, 1);
  for (int step = 3; step < 24; ++step) CHECK(pair.step());
  CHECK(sameBits(held, bits));
  CHECK(pair.runtime->remarks().count("no-arena") == 1);
  const int64_t uncaptured = pair.runtime->stats().uncapturedSteps;
  held = at::Tensor();
  for (int step = 24; step < 28; ++step) CHECK(pair.step());
  CHECK(pair.runtime->stats().uncapturedSteps == uncaptured);
  CHECK(pair.runtime->stats().captures == 2);
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
  ForwardBackward pair;
  for (int round = 0; round < 6; ++round) {
    CAPTURE(round);
    ForwardBackward::Values first = pair.forward(), second = pair.forward();
    if (round % 2) std::swap(first, second);
    for (ForwardBackward::Values* values : {&first, &second}) {
      pair.backward(*values);
      values->got.clear();
    }
  }
  CHECK(pair.runtime->remarks().count("saved-values-held") >= 1);
  CHECK(pair.runtime->stats().replays > 0);
}

TEST_CASE("saved values that are held together are one loan", "[law5]") {
  const int64_t slabs = liveHostSlabs();
  ForwardBackward pair;
  pair.runtime->holdTogether("forward", {1, 2, 3});
  const RuntimeStats& stats = pair.runtime->stats();
  std::vector<const c10::TensorImpl*> before;
  for (int step = 0; step < 6; ++step) {
    CAPTURE(step);
    const auto values = pair.forward();
    std::vector<const c10::TensorImpl*> now;
    for (size_t o = 1; o < 4; ++o) now.push_back(values.got[o].toTensor().unsafeGetTensorImpl());
    if (step >= 3) {  // nothing is made anew but the loan
      CHECK(now[1] == before[1]);
      CHECK(now[2] == before[2]);
    }
    before = now;
    pair.backward(values);
  }
  CHECK(stats.uncapturedSteps == 4);
  // While one holder has them, a forward takes other memory.
  auto held = pair.forward(), other = pair.forward();
  CHECK(stats.uncapturedSteps == 5);
  pair.backward(other);
  pair.backward(held);
  held.got.clear();
  other.got.clear();
  CHECK(pair.runtime->remarks().count("saved-values-held") == 1);
  auto last = pair.forward();
  CHECK(stats.uncapturedSteps == 6);
  // They outlive the runtime, all of them.
  std::vector<at::Tensor> bits;
  for (size_t o = 1; o < 4; ++o) bits.push_back(last.got[o].toTensor().clone());
  pair.runtime.reset();
  for (size_t o = 1; o < 4; ++o) CHECK(sameBits(last.got[o].toTensor(), bits[o - 1]));
  CHECK(liveHostSlabs() == slabs + 1);
  last.got.clear();
  CHECK(liveHostSlabs() == slabs);
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
