// A step on a stream that the caller captures: part of his graph, and nothing else.
#include "tests/unit/device_fixture.h"
#include "tests/unit/law_fixture.h"

#include "runtime/host/host_slab.h"

using namespace gravure;

namespace {

/// Says that the caller captures while `on`.
class CapturedDevice final : public DeviceOnHost {
 public:
  explicit CapturedDevice(const bool& on) : on_(on) {}
  bool callerCaptures() const override { return on_; }

 private:
  const bool& on_;
};

const char* const kPair = R"(gravure 1
graph forward(%w : Float(64, strides=[1], device=cpu) {parameter "w"}, %x : Float(64, strides=[1], device=cpu) {user_input "x"}):
  %xs : Float(64, strides=[1], device=cpu) = cudagraph::stage(%x)
  %s.out : Float(device=cpu), %b.out : Float(64, strides=[1], device=cpu) = cudagraph::launch[index=0, tags=["static: parameter", "staged: user input"]](%w, %xs)
    block0(%w.0 : Float(64, strides=[1], device=cpu), %xs.0 : Float(64, strides=[1], device=cpu)):
      %b : Float(64, strides=[1], device=cpu) = aten::mul.Tensor(%w.0, %xs.0)
      %s : Float(device=cpu) = aten::sum(%b)
      -> (%s, %b)
  %s.own : Float(device=cpu) = cudagraph::own(%s.out)
  return (%s.own {loss}, %b.out {saved "b"})
graph backward(%b : Float(64, strides=[1], device=cpu) {saved "b"}, %g : Float(device=cpu) {tangent "loss"}):
  %gs : Float(device=cpu) = cudagraph::stage(%g)
  %gw.out : Float(64, strides=[1], device=cpu) = cudagraph::launch[index=0, tags=["static: saved value", "staged: tangent"]](%b, %gs)
    block0(%b.0 : Float(64, strides=[1], device=cpu), %gs.0 : Float(device=cpu)):
      %gw : Float(64, strides=[1], device=cpu) = aten::mul.Tensor(%b.0, %gs.0)
      -> (%gw)
  %gw.own : Float(64, strides=[1], device=cpu) = cudagraph::own(%gw.out)
  return (%gw.own {gradient "w"})
)";

struct Loop {
  bool captured = false;
  Runtime runtime{readProgram(kPair), std::make_unique<CapturedDevice>(captured)};
  std::unique_ptr<Runtime> reference = makeReference(kPair);
  const at::Tensor w = at::randn({64}), tangent = at::ones({});

  struct Values {
    std::vector<c10::IValue> forward, backward;
  };
  Values step(const at::Tensor& x) {
    Values values;
    values.forward = runtime.run("forward", {w, x});
    const auto expected = reference->run("forward", {w, x});
    CHECK(sameBits(values.forward, expected));
    values.backward = runtime.run("backward", {values.forward[1], tangent});
    CHECK(sameBits(values.backward, reference->run("backward", {expected[1], tangent})));
    return values;
  }
  size_t captures() const { return static_cast<size_t>(runtime.stats().captures); }
};

}  // namespace

TEST_CASE("a step that the caller captures is no warm-up, and lies in no memory of ours") {
  Loop loop;
  const int warmUps = GENERATE(0, 1, 2, 4);  // before the capture; the third step is served
  CAPTURE(warmUps);
  for (int step = 0; step < warmUps; ++step) (void)loop.step(at::randn({64}));
  const auto uncaptured = loop.runtime.stats().uncapturedSteps;
  loop.captured = true;
  std::vector<Loop::Values> kept;
  for (int step = 0; step < 3; ++step) {
    kept.push_back(loop.step(at::randn({64})));
    for (const auto& values : {kept.back().forward, kept.back().backward}) {
      for (const c10::IValue& value : values)
        CHECK_FALSE(inHostArena(value.toTensor().const_data_ptr()));
    }
  }
  CHECK(loop.runtime.stats().uncapturedSteps == uncaptured + 6);
  CHECK(loop.captures() == (warmUps > 2 ? 2 : 0));
  CHECK(loop.runtime.remarks().count("caller-captures") == 2);  // one an entry
  loop.captured = false;
  for (int step = warmUps; step < 5; ++step) (void)loop.step(at::randn({64}));
  CHECK(loop.captures() == 2);
  CHECK(loop.runtime.stats().uncapturedSteps == 4 + 6);
}

TEST_CASE("what a step outside of the capture saved is not read in the caller's graph", "[law5]") {
  Loop loop;
  for (int step = 0; step < 4; ++step) (void)loop.step(at::randn({64}));
  const auto saved = loop.runtime.run("forward", {loop.w, at::randn({64})});
  REQUIRE(inHostArena(saved[1].toTensor().const_data_ptr()));
  loop.captured = true;
  CHECK_THROWS_WITH(loop.runtime.run("backward", {saved[1], loop.tangent}),
                    Catch::Contains("run the forward in the same capture"));
  loop.captured = false;
  CHECK_NOTHROW(loop.runtime.run("backward", {saved[1], loop.tangent}));
}
