// Law 5: gradients that are dropped before the next forward lend it their memory.
#include "tests/unit/law_fixture.h"

using namespace gravure;

namespace {

// The gradient is as large as what the forward computes and saves nothing of.
const char* const kWide = R"(gravure 1
graph forward(%w : Float(4096, strides=[1], device=cpu) {parameter "w"}, %x : Float(4096, strides=[1], device=cpu) {user_input "x"}):
  %xs : Float(4096, strides=[1], device=cpu) = cudagraph::stage(%x)
  %s.out : Float(device=cpu) = cudagraph::launch[index=0, tags=["static: parameter", "staged: user input"]](%w, %xs)
    block0(%w.0 : Float(4096, strides=[1], device=cpu), %xs.0 : Float(4096, strides=[1], device=cpu)):
      %a : Float(4096, strides=[1], device=cpu) = aten::mul.Tensor(%w.0, %xs.0)
      %b : Float(4096, strides=[1], device=cpu) = aten::tanh(%a)
      %s : Float(device=cpu) = aten::sum(%b)
      -> (%s)
  %s.own : Float(device=cpu) = cudagraph::own(%s.out)
  return (%s.own {loss}, %xs {saved "x"})
graph backward(%x : Float(4096, strides=[1], device=cpu) {saved "x"}, %g : Float(device=cpu) {tangent "loss"}):
  %gs : Float(device=cpu) = cudagraph::stage(%g)
  %gw.out : Float(4096, strides=[1], device=cpu) = cudagraph::launch[index=0, tags=["static: saved value", "staged: tangent"]](%x, %gs)
    block0(%x.0 : Float(4096, strides=[1], device=cpu), %gs.0 : Float(device=cpu)):
      %gw : Float(4096, strides=[1], device=cpu) = aten::mul.Tensor(%x.0, %gs.0)
      -> (%gw)
  %gw.own : Float(4096, strides=[1], device=cpu) = cudagraph::own(%gw.out)
  return (%gw.own {gradient "w"})
)";
constexpr int64_t kGradient = 4096 * 4;

/// A training loop; poison overwrites what the forward has no more use for.
struct Loop {
  std::unique_ptr<Runtime> runtime = makeRuntime(kWide), reference = makeReference(kWide);
  const at::Tensor w = at::randn({4096});
  std::vector<c10::IValue> gradients;  // of the last step, as `.grad` holds them

  /// True if loss and gradients have the reference's bits. `early`: gradients are dropped before the
  /// forward, not between forward and backward.
  bool step(bool early) {
    if (early) gradients.clear();
    const at::Tensor x = at::randn({4096}), tangent = at::randn({});
    const at::Tensor kept = early ? at::Tensor() : held();
    auto saved = runtime->run("forward", {w, x});
    auto expected = reference->run("forward", {w, x});
    const bool loss = sameBits(saved[0].toTensor(), expected[0].toTensor());
    const bool still = !kept.defined() || sameBits(gradients[0].toTensor(), kept);
    gradients.clear();
    gradients = runtime->run("backward", {saved[1], tangent});
    return loss && still && sameBits(gradients, reference->run("backward", {expected[1], tangent}));
  }
  at::Tensor held() const {
    return gradients.empty() ? at::Tensor() : gradients[0].toTensor().clone();
  }
  int64_t arena(bool early, int64_t steps) {
    for (int64_t step = 0; step < steps; ++step) {
      if (!this->step(early)) return -1;
    }
    return runtime->stats().arenaBytes;
  }
};

}  // namespace

TEST_CASE("gradients dropped before the forward take no memory from it", "[law5]") {
  Loop early, late;
  const int64_t shared = early.arena(true, 6), apart = late.arena(false, 6);
  REQUIRE(shared > 0);
  CHECK(apart == shared + kGradient);
  CHECK(early.runtime->stats().uncapturedSteps == 4);
  CHECK(late.runtime->stats().uncapturedSteps == 4);
  CHECK(early.runtime->remarks().count("result-held") == 0);
}

TEST_CASE("a gradient that is suddenly held over the forward keeps its bits", "[law5]") {
  Loop loop;
  REQUIRE(loop.arena(true, 4) > 0);
  REQUIRE(inHostArena(loop.gradients[0].toTensor().const_data_ptr()));
  const at::Tensor kept = loop.gradients[0].toTensor(), bits = kept.clone();
  // Step 5 runs uncaptured; from then on the gradient is a copy, and may be held for any time.
  for (int step = 0; step < 4; ++step) CHECK(loop.step(false));
  CHECK(sameBits(kept, bits));
  CHECK(loop.runtime->remarks().count("result-held") == 1);
  const_cast<at::Tensor&>(kept) = at::Tensor();
  const int64_t uncaptured = loop.runtime->stats().uncapturedSteps;
  for (int step = 0; step < 3; ++step) CHECK(loop.step(false));
  CHECK(loop.runtime->stats().uncapturedSteps == uncaptured);
  CHECK(!inHostArena(loop.gradients[0].toTensor().const_data_ptr()));
}

TEST_CASE("a forward alone between two steps writes over no gradient", "[law5]") {
  Loop loop;
  REQUIRE(loop.arena(true, 4) > 0);
  const at::Tensor bits = loop.held();
  for (int round = 0; round < 3; ++round) loop.runtime->run("forward", {loop.w, at::randn({4096})});
  CHECK(sameBits(loop.gradients[0].toTensor(), bits));
  CHECK(loop.step(true));
}
