// Steps whose numbers change: replayed with them, or run one by one where that cannot be proven.
#include "runtime/device/call_faults.h"
#include "tests/unit/runtime_fixture.h"

#include <limits>
#include <set>
#include <string>

using namespace gravure;

namespace {

/// A partition of `calls` on %w.0 : Float(4, 4) and the numbers %a.0 and %b.0; the result is %y.
std::string stepOf(const std::string& calls) {
  const std::string type = "Float(4, 4, strides=[4, 1], device=cpu)";
  return "gravure 1\ngraph step(%w : " + type +
         " {parameter \"w\"}, %a : float {symint \"a\"}, %b : float {symint \"b\"}):\n  %y.out : " +
         type +
         " = cudagraph::launch[index=0, tags=[\"static: parameter\", \"guarded: a\", \"guarded: "
         "b\"]](%w, %a, %b)\n    block0(%w.0 : " +
         type + ", %a.0 : float, %b.0 : float):\n" + calls + "      -> (%y)\n  %y.own : " + type +
         " = cudagraph::own(%y.out)\n  return (%y.own {output \"y\"})\n";
}

const char* const kScaled = R"(
      %s : Float(4, 4, strides=[4, 1], device=cpu) = aten::mul.Scalar(%w.0, %a.0)
      %t : Float(4, 4, strides=[4, 1], device=cpu) = aten::add.Tensor(%s, %w.0, alpha=%b.0)
      %y : Float(4, 4, strides=[4, 1], device=cpu) = aten::mul.Tensor(%t, %a.0)
)";
const char* const kProduct = R"(
      %s : Float(4, 4, strides=[4, 1], device=cpu) = aten::mul.Scalar(%w.0, %a.0)
      %y : Float(4, 4, strides=[4, 1], device=cpu) = aten::addmm(%w.0, %s, %w.0, beta=1, alpha=%b.0)
)";
const char* const kPower = R"(
      %s : Float(4, 4, strides=[4, 1], device=cpu) = aten::mul.Scalar(%w.0, %a.0)
      %y : Float(4, 4, strides=[4, 1], device=cpu) = aten::pow.Tensor_Scalar(%s, %b.0)
)";
const char* const kDraws = R"(
      %s : Float(4, 4, strides=[4, 1], device=cpu) = aten::mul.Scalar(%w.0, %a.0)
      %d : Float(4, 4, strides=[4, 1], device=cpu), %m : Bool(4, 4, strides=[4, 1], device=cpu) = aten::native_dropout(%s, 0.5, True)
      %y : Float(4, 4, strides=[4, 1], device=cpu) = aten::mul.Scalar(%d, %b.0)
)";

/// A step on a runtime and uncaptured.
struct Both {
  explicit Both(const std::string& calls)
      : runtime(makeRuntime(stepOf(calls))), reference(makeReference(stepOf(calls))) {}

  /// True if the step was replayed. Its bits must be those of the reference.
  bool replays(double a, double b) {
    const at::Tensor state = rngState();
    const auto expected = reference->run("step", {w, a, b});
    setRngState(state);
    const int64_t before = runtime->stats().replays;
    const auto got = runtime->run("step", {w, a, b});
    CAPTURE(a, b, remarksOf(*runtime));
    CHECK(sameBits(got, expected));
    return runtime->stats().replays > before;
  }
  /// Warmed up and captured with these.
  void warm(double a, double b) {
    for (int i = 0; i < 8; ++i) (void)replays(a, b);
    REQUIRE(replays(a, b));
  }

  at::Tensor w = at::rand({4, 4}) + 0.5;
  std::unique_ptr<Runtime> runtime, reference;
};

}  // namespace

TEST_CASE("law 3: a number is another one in each step, and each step is a replay", "[law3]") {
  Both both(kScaled);
  both.warm(0.1, 0.7);
  const int64_t uncaptured = both.runtime->stats().uncapturedSteps;
  for (int i = 0; i < 30; ++i) CHECK(both.replays(0.1 + 0.013 * i, 0.7 / (i + 1)));
  CHECK(both.runtime->stats().uncapturedSteps == uncaptured);
  CHECK(both.runtime->stats().captures == 1);
  CHECK(both.runtime->writtenNumbers().numbers == 2);
  CHECK(both.runtime->writtenNumbers().kernels == 3);
  CHECK_THAT(remarksOf(*both.runtime),
             Catch::Contains("numbers-written") && Catch::Contains("2 numbers in 3 kernels"));
}

TEST_CASE("law 3: numbers change in the warm-up, and in no step after it", "[law3]") {
  Both both(kScaled);
  for (int i = 0; i < 8; ++i) (void)both.replays(0.1 * (i + 1), 0.7);
  for (int i = 0; i < 8; ++i) CHECK(both.replays(0.81, 0.7));
}

TEST_CASE("law 3: zero, one, negative and infinite numbers are captured before they are written",
          "[law3]") {
  Both both(kScaled);
  both.warm(0.1, 0.7);
  for (const double a : {0.0, -0.0, 1.0, -0.3, 7.5, 1e300, std::numeric_limits<double>::infinity()})
    CHECK(both.replays(a, 0.7));
  for (const double b : {1.0, 0.0, 2.0}) CHECK(both.replays(0.2, b));
}

TEST_CASE("law 3: captured with a number of zero, replayed with another", "[law3]") {
  Both both(kScaled);
  both.warm(0.0, 1.0);
  for (int i = 0; i < 5; ++i) CHECK(both.replays(0.1 * i, 1.0 - 0.1 * i));
}

TEST_CASE("law 3: where a kernel does not show its number, another value runs uncaptured",
          "[law3]") {
  Both both(kProduct);
  both.warm(0.1, 0.7);
  CHECK(both.replays(0.2, 0.7));
  CHECK_FALSE(both.replays(0.2, 0.8));
  CHECK(both.replays(0.3, 0.7));
  CHECK(both.runtime->writtenNumbers().numbers == 1);
  CHECK_THAT(remarksOf(*both.runtime), Catch::Contains("number-baked") &&
                                           Catch::Contains("operand %b") &&
                                           Catch::Contains("cannot be read"));
}

TEST_CASE("law 3: a value for which another kernel runs is run uncaptured, and said", "[law3]") {
  Both both(kPower);
  both.warm(0.1, 3.7);
  CHECK(both.replays(0.2, 2.9));
  CHECK_FALSE(both.replays(0.2, 2.0));
  CHECK_FALSE(both.replays(0.3, 2.0));
  CHECK(both.replays(0.3, 2.1));
  CHECK_THAT(remarksOf(*both.runtime),
             Catch::Contains("guard-failed") &&
                 Catch::Contains("its kernels are others: other kernels run"));
}

TEST_CASE("law 3: captured with a value that chooses its kernel, a number is baked in", "[law3]") {
  Both both(kPower);
  both.warm(0.1, 2.0);
  CHECK(both.replays(0.2, 2.0));
  CHECK_FALSE(both.replays(0.2, 2.9));
  CHECK_THAT(remarksOf(*both.runtime), Catch::Contains("decides which kernel runs"));
}

TEST_CASE("law 3: numbers of a partition that draws are baked in", "[law3]") {
  Both both(kDraws);
  both.warm(0.1, 0.7);
  CHECK(both.runtime->writtenNumbers().numbers == 0);
  CHECK_FALSE(both.replays(0.2, 0.7));
  CHECK_THAT(remarksOf(*both.runtime), Catch::Contains("draws random numbers"));
}

TEST_CASE("law 6: each write of a number fails once: the step is right, and so are those behind it",
          "[law6]") {
  std::set<std::string> hit;
  for (int64_t fault = 1; fault <= 20; ++fault) {
    Both both(kScaled);
    both.warm(0.1, 0.7);
    const auto expected = both.reference->run("step", {both.w, 0.4, 0.6});
    std::vector<c10::IValue> got;
    CallFaults::start(fault);
    try {
      got = both.runtime->run("step", {both.w, 0.4, 0.6});
    } catch (const c10::Error& error) {
      CHECK_THAT(error.what_without_backtrace(), Catch::Contains("injected fault at"));
    }
    CallFaults::stop();
    const std::string failed = CallFaults::failed();
    hit.insert(failed);
    CAPTURE(fault, failed);
    if (!got.empty()) CHECK(sameBits(got, expected));
    if (failed == "the writing of a kernel's parameters") {
      CHECK_FALSE(got.empty());
      CHECK_THAT(remarksOf(*both.runtime), Catch::Contains("launch-failed"));
    }
    CHECK(both.replays(0.4, 0.6));
    CHECK(both.replays(0.9, 0.1));
  }
  CHECK(hit.count("the writing of a kernel's parameters") == 1);
}

TEST_CASE("law 6: a fault in the captures that look for numbers costs no bits", "[law6]") {
  for (const FaultPoint point :
       {FaultPoint::CaptureBegin, FaultPoint::CaptureCall, FaultPoint::CaptureEnd}) {
    for (int64_t countdown = 1; countdown <= 12; ++countdown) {
      Both both(kScaled);
      both.runtime->device().injectFault(point, countdown);
      for (int i = 0; i < 40; ++i) (void)both.replays(0.1 * (i + 1), 0.7);
      CHECK(both.replays(0.77, 0.6));
    }
  }
}

TEST_CASE("law 6: a fault while a new kind of value is looked at costs no bits", "[law6]") {
  for (int64_t countdown = 1; countdown <= 2; ++countdown) {
    Both both(kScaled);
    both.warm(0.1, 0.7);
    both.runtime->device().injectFault(FaultPoint::CaptureBegin, countdown);
    CHECK_FALSE(both.replays(0.0, 0.7));
    CHECK(both.replays(0.0, 0.7));
    CHECK_THAT(remarksOf(*both.runtime), Catch::Contains("could not be found out"));
  }
}
