// Operators that allocate otherwise than they did in warm-up.
#include "tests/unit/runtime_fixture.h"

#include <torch/library.h>

using namespace gravure;

namespace {

bool allocatesMore = false;

/// Twice `x`. Its result is the first of two allocations, or the second of three.
at::Tensor twice(const at::Tensor& x) {
  at::Tensor extra;
  if (allocatesMore) extra = at::empty_like(x);
  at::Tensor out = at::empty_like(x);
  const at::Tensor scratch = at::empty_like(x).fill_(-1);
  return at::mul_out(out, x, at::scalar_tensor(2));
}

const char* const kTwice = R"(gravure 1
graph step(%x : Float(64, strides=[1], device=cpu) {user_input "x"}):
  %h : Float(64, strides=[1], device=cpu) = gravure_test::twice(%x)
  %k : Float(64, strides=[1], device=cpu) = aten::relu(%x)
  %y.out : Float(64, strides=[1], device=cpu) = cudagraph::launch[index=0, tags=["static: host node", "static: host node"]](%h, %k)
    block0(%h.0 : Float(64, strides=[1], device=cpu), %k.0 : Float(64, strides=[1], device=cpu)):
      %s : Float(64, strides=[1], device=cpu) = aten::sub.Tensor(%h.0, %k.0)
      %y : Float(64, strides=[1], device=cpu) = aten::neg(%s)
      -> (%y)
  %y.own : Float(64, strides=[1], device=cpu) = cudagraph::own(%y.out)
  return (%y.own {output "y"})
)";

}  // namespace

TORCH_LIBRARY(gravure_test, m) { m.def("twice(Tensor x) -> Tensor", &twice); }

TEST_CASE("a result that came to lie in another one's place is moved before that is reused",
          "[law1]") {
  allocatesMore = false;
  auto runtime = makeRuntime(kTwice);
  auto reference = makeReference(kTwice);
  for (int step = 0; step < 8; ++step) {
    CAPTURE(step);
    allocatesMore = step >= 5;
    const at::Tensor x = at::randn({64});
    CHECK(sameBits(runtime->run("step", {x}), reference->run("step", {x})));
  }
  CHECK(runtime->stats().uncapturedSteps == 2);
  CHECK(runtime->remarks().count("allocation-mismatch") == 1);
}
