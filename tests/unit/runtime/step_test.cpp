// A hand-written emitted step, warmed up, captured and replayed on the host device.
#include "tests/unit/runtime_fixture.h"

using namespace gravure;

TEST_CASE("a step is warmed up, captured and replayed with the bits of the uncaptured path") {
  at::manual_seed(1);
  auto runtime = makeRuntime(kTrainingStep);
  auto reference = makeReference(kTrainingStep);
  const at::Tensor w = at::randn({8, 4}).set_requires_grad(true);
  at::Tensor b = at::zeros({8}), rb = b.clone();
  const auto version = b._version();
  for (int step = 0; step < 10; ++step) {
    CAPTURE(step);
    const at::Tensor x = at::randn({16, 4}), keptX = x.clone(), state = rngState();
    const auto expected = reference->run("step", {w, rb, x});
    const at::Tensor after = rngState();
    setRngState(state);
    const auto got = runtime->run("step", {w, b, x});
    CHECK(sameBits(got, expected));
    CHECK(sameBits(rngState(), after));
    CHECK(sameBits(b, rb));
    CHECK(sameBits(x, keptX));
    CHECK(got[2].toTensor().is_same(b));
    CHECK(b._version() == version + step + 1);
  }
  CHECK(remarksOf(*runtime) == "");
  CHECK(runtime->stats().captures == 2);
  CHECK(runtime->stats().uncapturedSteps == 2);
  CHECK(runtime->stats().replays == 16);
  CHECK(countIn(*runtime, PartitionState::Captured) == 2);
  CHECK(runtime->memoryPlan().verify() == "");
}

TEST_CASE("a step leaves none of its values behind, replayed or broken off", "[law5]") {
  auto runtime = makeRuntime(R"(gravure 1
graph step(%x : Float(4, 4, strides=[4, 1], device=cpu) {user_input "x"},
           %i : Long(2, strides=[1], device=cpu) {user_input "i"},
           %unread : Float(4, strides=[1], device=cpu) {user_input "unread"}):
  %xs : Float(4, 4, strides=[4, 1], device=cpu), %is : Long(2, strides=[1], device=cpu) = cudagraph::stage(%x, %i)
  %y.out : Float(2, 4, strides=[4, 1], device=cpu) = cudagraph::launch[index=0, tags=["staged: user input", "staged: user input"]](%xs, %is)
    block0(%x.0 : Float(4, 4, strides=[4, 1], device=cpu), %i.0 : Long(2, strides=[1], device=cpu)):
      %t : Float(4, 4, strides=[1, 4], device=cpu) = aten::t(%x.0)
      %y : Float(2, 4, strides=[4, 1], device=cpu) = aten::index_select(%t, 0, %i.0)
      -> (%y)
  %y.own : Float(2, 4, strides=[4, 1], device=cpu) = cudagraph::own(%y.out)
  return (%y.own {output "y"})
)");
  const at::Tensor x = at::randn({4, 4}), unread = at::ones({4});
  const at::Tensor good = at::tensor({1, 3}, at::kLong), bad = at::tensor({1, 9}, at::kLong);
  // The view was made inside the partition when the next call failed.
  CHECK_THROWS(runtime->run("step", {x, bad, unread}));
  CHECK(x.storage().use_count() == 1);
  for (int step = 0; step < 5; ++step) (void)runtime->run("step", {x, good, unread});
  CHECK(runtime->stats().replays > 0);
  CHECK(x.storage().use_count() == 1);
  CHECK(unread.use_count() == 1);
}

TEST_CASE("staged copies of one dtype are one call") {
  auto runtime = makeRuntime(R"(gravure 1
graph step(%x : Float(4, strides=[1], device=cpu) {user_input "x"},
           %i : Long(4, strides=[1], device=cpu) {user_input "i"},
           %y : Float(4, strides=[1], device=cpu) {user_input "y"}):
  %xs : Float(4, strides=[1], device=cpu), %is : Long(4, strides=[1], device=cpu), %ys : Float(4, strides=[1], device=cpu) = cudagraph::stage(%x, %i, %y)
  %z.out : Float(4, strides=[1], device=cpu) = cudagraph::launch[index=0, tags=["staged: user input", "staged: user input", "staged: user input"]](%xs, %is, %ys)
    block0(%x.0 : Float(4, strides=[1], device=cpu), %i.0 : Long(4, strides=[1], device=cpu), %y.0 : Float(4, strides=[1], device=cpu)):
      %s : Float(4, strides=[1], device=cpu) = aten::add.Tensor(%x.0, %y.0)
      %z : Float(4, strides=[1], device=cpu) = aten::mul.Tensor(%s, %i.0)
      -> (%z)
  %z.own : Float(4, strides=[1], device=cpu) = cudagraph::own(%z.out)
  return (%z.own {output "z"})
)");
  for (int step = 0; step < 6; ++step) {
    CAPTURE(step);
    // One of another layout, one of another dtype.
    at::Tensor x = at::randn({8}).slice(0, 0, 8, 2), y = at::randn({4}), i = at::randint(9, {4});
    i = i.to(at::kLong);
    const CountedCalls together("aten::_foreach_copy_");
    const auto got = runtime->run("step", {x, i, y});
    CHECK(sameBits(got[0].toTensor(), (x + y) * i));
    if (step >= 3) CHECK(together.count() == 1);
  }
  CHECK(runtime->stats().replays >= 3);
}

TEST_CASE("elements that share a place are staged once, and only from such a layout", "[law3]") {
  const char* const text = R"(gravure 1
graph step(%x : Float(4, 8, strides=[0, 1], device=cpu) {user_input "x"}):
  %xs : Float(4, 8, strides=[0, 1], device=cpu) = cudagraph::stage(%x)
  %y.out : Float(4, 8, strides=[8, 1], device=cpu) = cudagraph::launch[index=0, tags=["staged: user input"]](%xs)
    block0(%x.0 : Float(4, 8, strides=[0, 1], device=cpu)):
      %y : Float(4, 8, strides=[8, 1], device=cpu) = aten::mul.Scalar(%x.0, 3)
      -> (%y)
  %y.own : Float(4, 8, strides=[8, 1], device=cpu) = cudagraph::own(%y.out)
  return (%y.own {output "y"})
)";
  auto runtime = makeRuntime(text);
  auto reference = makeReference(text);
  const auto agree = [&](const at::Tensor& x) {
    return sameBits(runtime->run("step", {x}), reference->run("step", {x}));
  };
  for (int step = 0; step < 5; ++step) CHECK(agree(at::randn({1, 8}).expand({4, 8})));
  const auto replays = runtime->stats().replays;
  CHECK(replays == 3);
  CHECK(agree(at::randn({4, 8})));  // rows of their own
  CHECK(runtime->stats().replays == replays);
  CHECK(runtime->remarks().count("guard-failed") == 1);
  CHECK(agree(at::randn({1, 8}).expand({4, 8})));
  CHECK(runtime->stats().replays == replays + 1);
}
