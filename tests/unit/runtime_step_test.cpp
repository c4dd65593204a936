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
