// Inputs that lie elsewhere, or otherwise, than where they were captured, again and again.
#include "tests/unit/law_fixture.h"

using namespace gravure;

namespace {

/// Runs steps whose inputs `prepare` changes first, beside the reference.
struct Moving : SideBySide {
  using SideBySide::SideBySide;
  int64_t uncaptured() const { return runtime->stats().uncapturedSteps; }
  bool said(const char* name) const { return runtime->remarks().count(name) > 0; }
};

/// The same values at another address.
at::Tensor moved(const at::Tensor& tensor) { return tensor.detach().clone(); }

const char* const kScaledByBuffer = R"(gravure 1
graph step(%b : Float(4, 4, strides=[4, 1], device=cpu) {buffer "b"},
           %x : Float(4, 4, strides=[4, 1], device=cpu) {user_input "x"}):
  %xs : Float(4, 4, strides=[4, 1], device=cpu) = cudagraph::stage(%x)
  %y.out : Float(4, 4, strides=[4, 1], device=cpu), %v.out : Float(4, 4, strides=[1, 4], device=cpu) = cudagraph::launch[index=0, tags=["static: buffer", "staged: user input"]](%b, %xs)
    block0(%b.0 : Float(4, 4, strides=[4, 1], device=cpu), %x.0 : Float(4, 4, strides=[4, 1], device=cpu)):
      %y : Float(4, 4, strides=[4, 1], device=cpu) = aten::mul.Tensor(%x.0, %b.0)
      %v : Float(4, 4, strides=[1, 4], device=cpu) = aten::t(%b.0)
      -> (%y, %v)
  %y.own : Float(4, 4, strides=[4, 1], device=cpu) = cudagraph::own(%y.out)
  return (%y.own {output "y"}%VIEW%)
)";

std::string scaledByBuffer(bool handsOutView) {
  std::string text = kScaledByBuffer;
  const auto at = text.find("%VIEW%");
  return text.replace(at, 6, handsOutView ? ", %v.out {alias %b}" : "");
}

}  // namespace

TEST_CASE("a parameter that lies elsewhere in each step is copied, and captured once more",
          "[law1][law3]") {
  Moving pair;
  for (int step = 0; step < 24; ++step) {
    if (step >= 4) pair.w = moved(pair.w).mul_(0.9);
    CAPTURE(step);
    CHECK(pair.step());
  }
  CHECK(pair.uncaptured() == 2 + 1);
  CHECK(pair.runtime->stats().captures == 2 + 2);
  CHECK(pair.runtime->remarks().count("input-staged") == 1);
  CHECK_FALSE(pair.said("often-uncaptured"));
}

TEST_CASE("what the program writes into a moving input is the caller's", "[law2]") {
  Moving pair;
  for (int step = 0; step < 24; ++step) {
    if (step >= 4) pair.b = moved(pair.b);
    const at::Tensor held = pair.b;
    const auto version = held._version();
    CAPTURE(step);
    CHECK(pair.step());  // compares b with the reference's
    CHECK(held._version() == version + 1);
    CHECK(pair.last[2].toTensor().is_same(held));
  }
  CHECK(pair.uncaptured() == 2 + 1);
  CHECK(pair.runtime->stats().replays == 2 * 21);
}

TEST_CASE("an input that is made anew in each step is copied, though addresses come again",
          "[law1]") {
  Moving pair;
  const at::Tensor blocks = at::randn({3, 8, 4});  // as an allocator hands them out
  for (int step = 0; step < 24; ++step) {
    if (step >= 4) {
      pair.w = at::Tensor();
      const auto made = [](void*) {};
      pair.w = at::from_blob(blocks[step % 3].data_ptr(), {8, 4}, made, at::kFloat);
    }
    CHECK(pair.step());
  }
  CHECK(pair.uncaptured() == 2 + 1);
  CHECK(pair.said("input-staged"));
}

TEST_CASE("an input that was replaced is captured where it stays, without a copy", "[law3]") {
  Moving pair;
  for (int step = 0; step < 60; ++step) {
    if (step == 10 || step == 30) pair.w = moved(pair.w);
    CHECK(pair.step());
  }
  CHECK(pair.uncaptured() == 2 + 2);
  CHECK(pair.runtime->remarks().count("captured-anew") == 2);
  CHECK_FALSE(pair.said("input-staged"));
}

TEST_CASE("a step that is refused leaves a moving input alone", "[law2]") {
  Moving pair;
  for (int step = 0; step < 8; ++step) {
    if (step >= 4) pair.b = moved(pair.b);
    CHECK(pair.step());
  }
  REQUIRE(pair.said("input-staged"));
  const at::Tensor b = moved(pair.b);
  const at::Tensor expected = b.clone();
  // No program's step: an input of the wrong kind, before which nothing has run.
  CHECK_THROWS(pair.runtime->run("step", {pair.w, b, at::zeros({1, 4})}));
  CHECK(sameBits(b, expected));
  pair.b = b;
  CHECK(pair.step());
}

TEST_CASE("a copy never comes between inputs that share memory, of which one is written",
          "[law1]") {
  Moving pair;
  for (int step = 0; step < 8; ++step) {
    if (step >= 4) pair.b = moved(pair.b);
    CHECK(pair.step());
  }
  const auto replays = pair.runtime->stats().replays;
  // b is a part of w.
  const at::Tensor all = at::randn({8, 4}), other = all.clone();
  pair.w = all;
  pair.b = all.view({-1}).narrow(0, 0, 8);
  for (int step = 0; step < 4; ++step) {
    const at::Tensor x = at::randn({16, 4}), state = rngState();
    const auto expected = pair.reference->run("step", {other, other.view({-1}).narrow(0, 0, 8), x});
    setRngState(state);
    pair.last.clear();
    CHECK(sameBits(pair.runtime->run("step", {pair.w, pair.b, x}), expected));
    CHECK(sameBits(all, other));
    CHECK(pair.runtime->stats().replays == replays);
  }
}

TEST_CASE("where a view of a moving input is handed out it is not copied, and that is said",
          "[law5][law11]") {
  for (const bool view : {false, true}) {
    CAPTURE(view);
    auto runtime = makeRuntime(scaledByBuffer(view));
    for (int step = 0; step < 30; ++step) {
      const at::Tensor x = at::randn({4, 4}), b = at::randn({4, 4});
      const auto got = runtime->run("step", {b, x});
      CHECK(sameBits(got[0].toTensor(), x * b));
      if (!view) continue;
      CHECK(got[1].toTensor().storage().data() == b.storage().data());
      CHECK(sameBits(got[1].toTensor(), b.t()));
    }
    CHECK((runtime->remarks().count("input-staged") == 1) != view);
    CHECK((runtime->remarks().count("often-uncaptured") == 1) == view);
    if (view) CHECK_THAT(remarksOf(*runtime), Catch::Contains("copy_"));
  }
}

TEST_CASE("a layout that stays is planned for, and layouts that come and go are given up on",
          "[law1][law3]") {
  const std::string text = scaledByBuffer(false);
  auto runtime = makeRuntime(text);
  auto reference = makeReference(text);
  at::Tensor b = at::randn({4, 4});
  const auto step = [&] {
    const at::Tensor x = at::randn({4, 4});
    return sameBits(runtime->run("step", {b, x}), reference->run("step", {b, x}));
  };
  for (int i = 0; i < 6; ++i) CHECK(step());
  b = at::randn({4, 4}).t();
  for (int i = 0; i < 8; ++i) CHECK(step());
  CHECK(runtime->remarks().count("layout-anew") == 1);
  CHECK(runtime->stats().uncapturedSteps == 2 + 2 + 2);  // seen twice, and warmed up
  CHECK(runtime->stats().captures == 2);
  const at::Tensor layouts[2] = {b, at::randn({4, 4})};
  for (int i = 0; i < 100; ++i) {
    b = layouts[i / 3 % 2];
    CHECK(step());
  }
  CHECK(runtime->remarks().count("layout-anew") <= 4);
  CHECK(runtime->remarks().count("often-uncaptured") == 1);
  CHECK_THAT(remarksOf(*runtime), Catch::Contains("keep one memory format"));
}

TEST_CASE("a layout that changes between warm-up and capture is warmed up for", "[law1]") {
  const char* const text = R"(gravure 1
graph step(%b : Float(4, 4, strides=[4, 1], device=cpu) {buffer "b"}):
  %y.out : Float(4, 4, strides=[4, 1], device=cpu) = cudagraph::launch[index=0, tags=["static: buffer"]](%b)
    block0(%b.0 : Float(4, 4, strides=[4, 1], device=cpu)):
      %y : Float(4, 4, strides=[4, 1], device=cpu) = aten::exp(%b.0)
      -> (%y)
  %y.own : Float(4, 4, strides=[4, 1], device=cpu) = cudagraph::own(%y.out)
  return (%y.own {output "y"})
)";
  auto runtime = makeRuntime(text);
  at::Tensor b = at::randn({4, 4});
  for (int step = 0; step < 20; ++step) {
    CAPTURE(step);
    if (step == 2) b = at::randn({4, 4}).t();
    const at::Tensor y = runtime->run("step", {b})[0].toTensor();
    CHECK(sameBits(y, b.exp()));
    CHECK(y.strides() == b.strides());
  }
  CHECK(runtime->stats().replays > 10);
}

TEST_CASE("a number that differs in each step is said once, with the remedy", "[law11]") {
  auto runtime = makeRuntime(kScaled);
  const at::Tensor w = at::randn({4});
  for (int64_t n = 0; n < 40; ++n)
    CHECK(sameBits(runtime->run("step", {w, n})[0].toTensor(), w * n));
  CHECK(runtime->remarks().count("often-uncaptured") == 1);
  CHECK_THAT(remarksOf(*runtime), Catch::Contains("give it as a tensor"));
}
