// Numbers that change from step to step, on a GPU: written into the parameters of captured kernels.
#include "runtime/cuda/cuda_graph_work.h"
#include "runtime/device/call_faults.h"
#include "tests/cuda/pair.h"

#include <iostream>
#include <set>

using namespace gravure;
using namespace gravure::test;

namespace {

/// `calls` on %w : Float(64, 64) and the numbers %a and %b; the result is %y.
std::string stepOf(const std::string& calls, const std::string& dtype = "Float") {
  const std::string type = dtype + "(64, 64, strides=[64, 1], device=cuda:0)";
  std::string text = "gravure 1\ngraph step(%w : T {parameter \"w\"}, %a : float {symint \"a\"}, "
                     "%b : float {symint \"b\"}):\n" +
                     calls + "  return (%y {output \"y\"})\n";
  for (size_t at = 0; (at = text.find(" T", at)) != std::string::npos;)
    text.replace(at + 1, 1, type);
  return text;
}

const char* const kScaled = R"(
  %s : T = aten::mul.Scalar(%w, %a)
  %t : T = aten::add.Tensor(%s, %w, alpha=%b)
  %u : T = aten::div.Scalar(%t, %a)
  %y : T = aten::addcmul(%u, %w, %t, value=%b)
)";
const char* const kProduct = R"(
  %s : T = aten::mul.Scalar(%w, %a)
  %y : T = aten::addmm(%s, %s, %w, beta=1, alpha=%b)
)";
const char* const kPower = R"(
  %s : T = aten::mul.Scalar(%w, %a)
  %y : T = aten::pow.Tensor_Scalar(%s, %b)
)";

struct Both {
  explicit Both(const std::string& calls, const std::string& dtype = "Float")
      : w(at::rand({64, 64}, at::TensorOptions(kGpu))
              .add_(0.5)
              .to(dtype == "Float" ? at::kFloat : at::kBFloat16)),
        runtime(load(stepOf(calls, dtype), false)), reference(load(stepOf(calls, dtype), true)) {}

  /// True if the step was replayed. Its bits must be those of the reference.
  bool replays(double a, double b) {
    const auto expected = reference->run("step", {w, a, b});
    const int64_t before = runtime->stats().replays;
    const auto got = runtime->run("step", {w, a, b});
    CAPTURE(a, b);
    CHECK(sameBits(got[0].toTensor(), expected[0].toTensor()));
    return runtime->stats().replays > before;
  }
  void warm(double a, double b) {
    for (int i = 0; i < 8; ++i) (void)replays(a, b);
    CHECK(replays(a, b));
  }
  std::string remarks() {
    std::string text;
    for (const Remark& remark : runtime->remarks().all())
      text += remark.name + ": " + remark.node + ": " + remark.message + "\n";
    return text;
  }

  at::Tensor w;
  std::unique_ptr<Runtime> runtime, reference;
};

}  // namespace

TEST_CASE("law 3: on a GPU a number is another one in each step, and each step is a replay",
          "[law3]") {
  NEEDS_GPU();
  CHECK(whyNoGraphWork() == "");
  for (const char* dtype : {"Float", "BFloat16"}) {
    Both both(kScaled, dtype);
    both.warm(0.1, 0.7);
    for (int i = 0; i < 20; ++i) CHECK(both.replays(0.1 + 0.013 * i, 0.7 / (i + 1)));
    for (const double each : {1.0, 2.0, -0.3, 7.5, 1e-30}) {
      const bool replayed = both.replays(each, each);
      CAPTURE(dtype, each, both.remarks());
      CHECK(replayed);
    }
    CHECK(both.replays(0.3, 0.0));
    CHECK(both.runtime->writtenNumbers().numbers == 2);
    CHECK(both.runtime->stats().captures == 1);
  }
}

TEST_CASE("law 3: on a GPU a product whose kernel does not show its number is run uncaptured",
          "[law3]") {
  NEEDS_GPU();
  Both both(kProduct, "BFloat16");
  both.warm(0.1, 0.7);
  CHECK(both.replays(0.2, 0.7));
  const bool written = both.runtime->writtenNumbers().numbers == 2;
  for (const double b : {0.8, 0.3, 0.0, 1.0}) CHECK((!both.replays(0.2, b) || written));
  std::cerr << both.remarks();
  CHECK(both.replays(0.3, 0.7));
}

TEST_CASE("law 3: on a GPU an exponent chooses the kernel", "[law3]") {
  NEEDS_GPU();
  Both both(kPower);
  both.warm(0.1, 3.7);
  for (const double b : {2.9, 2.0, 0.5, 3.0, -1.0, 0.0, 1.0, 2.1}) (void)both.replays(0.2, b);
  CHECK(both.replays(0.3, 2.1));
  std::cerr << both.remarks();
}

TEST_CASE("law 6: each call that reads or writes kernels fails once", "[law6]") {
  NEEDS_GPU();
  const auto live = [] {
    Both both(kScaled);
    for (int i = 0; i < 12; ++i) (void)both.replays(0.1 + 0.01 * i, 0.7);
    CHECK(both.replays(0.9, 0.2));
    (void)both.replays(0.0, 1.0);
  };
  live();
  CallFaults::start(0);
  live();
  const int64_t passes = CallFaults::stop();
  std::set<std::string> hit;
  for (int64_t fault = 1; fault <= passes; ++fault) {
    CallFaults::start(fault);
    Both both(kScaled);
    for (int i = 0; i < 24; ++i) {
      try {
        (void)both.replays(0.1 + 0.01 * i, 0.7);
      } catch (const c10::Error& error) {
        CHECK_THAT(error.what_without_backtrace(), Catch::Contains("injected fault at"));
      }
    }
    CallFaults::stop();
    hit.insert(CallFaults::failed());
    CAPTURE(CallFaults::failed(), both.remarks());
    for (int i = 0; i < 24; ++i) (void)both.replays(0.3 + 0.01 * i, 0.7);
    CHECK(both.replays(0.95, 0.6));
  }
  for (const char* each :
       {"the reading of a graph's nodes", "the reading of a kernel's parameters",
        "the reading of a capture's nodes", "the writing of a kernel's parameters"})
    CHECK(hit.count(each) == 1);
}
