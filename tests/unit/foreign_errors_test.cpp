// Errors that are not PyTorch's own, as operators that Python implements throw them.
#include "tests/unit/device_fixture.h"
#include "tests/unit/law_fixture.h"

#include <stdexcept>

using namespace gravure;

namespace {

/// Captures nothing: each call throws as Python's would.
class RaisingCapture final : public Capture {
 public:
  void call(const Call&, const c10::IValue&, torch::jit::Stack&) override {
    throw std::runtime_error("ValueError: raised by an operator");
  }
  std::unique_ptr<Executable> finish() override { return nullptr; }
};

class RaisingDevice final : public DeviceOnHost {
 public:
  std::unique_ptr<Capture> beginCapture(const std::vector<at::Generator>&) override {
    return std::make_unique<RaisingCapture>();
  }
};

}  // namespace

TEST_CASE("whatever is thrown in a capture, the partition is quarantined and the step is right",
          "[law6]") {
  auto reference = makeReference(kTrainingStep);
  Runtime runtime(readProgram(kTrainingStep), std::make_unique<RaisingDevice>());
  const at::Tensor w = at::randn({8, 4}), b = at::zeros({8}), other = b.clone();
  for (int step = 0; step < 6; ++step) {
    CAPTURE(step);
    const at::Tensor x = at::randn({16, 4}), state = rngState();
    const auto expected = reference->run("step", {w, other, x});
    setRngState(state);
    CHECK(sameBits(runtime.run("step", {w, b, x}), expected));
    CHECK(sameBits(b, other));
  }
  CHECK(countIn(runtime, PartitionState::Quarantined) == 2);
  CHECK_THAT(remarksOf(runtime), Catch::Contains("raised by an operator"));
}
