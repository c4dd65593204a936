// What a launch's guards take for the tensor that was captured.
#include "runtime/program/guards.h"
#include "tests/unit/law_fixture.h"

using namespace gravure;

TEST_CASE("a guard does not take another tensor for the one whose object is gone", "[law3]") {
  const at::Tensor memory = at::zeros({64, 8});
  at::Tensor captured = memory[0];
  const void* object = captured.unsafeGetTensorImpl();
  const OperandGuard guard(captured, /*keep=*/false);
  CHECK(guard.holds(captured));
  captured = at::Tensor();
  std::vector<at::Tensor> others;
  for (int row = 1; row < 64; ++row) {
    others.push_back(memory[row]);
    CHECK_FALSE(guard.holds(others.back()));
    CHECK(others.back().unsafeGetTensorImpl() != object);
  }
  CHECK(guard.holds(memory[0]));
}

TEST_CASE("a view that the host makes anew is known by its place, not by its object", "[law3]") {
  auto runtime = makeRuntime(kHostView);
  int64_t replaysOfOther = 0;
  for (int step = 0; step < 400; ++step) {
    const int64_t n = step < 4 ? 1 : step % 4;
    CAPTURE(step, n);
    // So that malloc gives the view's object each address that is free, that of the captured one too.
    std::vector<at::Tensor> others;
    for (int i = 0; i < step % 32; ++i) others.push_back(at::empty({0}));
    const at::Tensor x = at::randn({4, 8});
    const auto before = runtime->stats().replays;
    const auto got = runtime->run("step", {x, at::scalar_tensor(n, at::kLong)});
    CHECK(sameBits(got[0].toTensor(), x[n] * 2 * 3));
    if (step >= 4) replaysOfOther += runtime->stats().replays - before - 1;
  }
  CHECK(replaysOfOther == 99);  // where the same row came again, and no other
  CHECK(runtime->remarks().count("guard-failed") == 1);
}
