// Errors that are not PyTorch's own, as operators that Python implements throw them.
#include "tests/unit/device_fixture.h"
#include "tests/unit/law_fixture.h"

#include <stdexcept>

using namespace gravure;

namespace {

/// Captures nothing: each call throws as Python's would.
class RaisingCapture final : public Capture {
 public:
  explicit RaisingCapture(std::string text) : text_(std::move(text)) {}
  void call(const Call&, const c10::IValue&, torch::jit::Stack&) override {
    throw std::runtime_error(text_);
  }
  std::unique_ptr<Executable> finish() override { return nullptr; }

 private:
  const std::string text_;
};

/// Captures raise for as long as `text` says what.
class RaisingDevice final : public DeviceOnHost {
 public:
  explicit RaisingDevice(const std::string* text) : text_(text) {}
  std::unique_ptr<Capture> beginCapture(const std::vector<at::Generator>& generators) override {
    ++tries;
    if (text_->empty()) return DeviceOnHost::beginCapture(generators);
    return std::make_unique<RaisingCapture>(*text_);
  }
  int64_t tries = 0;

 private:
  const std::string* const text_;
};

/// A runtime on such a device beside its reference.
struct RaisingPair : SideBySide {
  explicit RaisingPair(RuntimeOptions options = {}) {
    auto made = std::make_unique<RaisingDevice>(&text);
    device = made.get();
    runtime =
        std::make_unique<Runtime>(readProgram(kTrainingStep), std::move(made), std::move(options));
  }
  std::string text = "ValueError: raised by an operator";
  RaisingDevice* device = nullptr;
};

}  // namespace

TEST_CASE("whatever is thrown in a capture, the partition is quarantined and the step is right",
          "[law6]") {
  RaisingPair pair;
  for (int step = 0; step < 6; ++step) CHECK(pair.step());
  CHECK(countIn(*pair.runtime, PartitionState::Quarantined) == 2);
  CHECK_THAT(remarksOf(*pair.runtime), Catch::Contains("raised by an operator"));
}

TEST_CASE("what may have passed is tried again, ever later and not for ever", "[law6]") {
  RaisingPair pair;
  std::vector<int> tries;
  for (int step = 0; step < 2000; ++step) {
    const int64_t before = pair.device->tries;
    CHECK(pair.step());
    if (pair.device->tries > before) tries.push_back(step);
  }
  CHECK(tries == std::vector<int>{2, 2 + 16, 2 + 16 + 64, 2 + 16 + 64 + 256, 2 + 336 + 1024});
  CHECK(pair.runtime->remarks().count("capture-failed") == 2);  // said once a partition
}

TEST_CASE("a capture that failed for a cause that has passed is made", "[law6][law11]") {
  RaisingPair pair;
  for (int step = 0; step < 10; ++step) CHECK(pair.step());
  pair.text.clear();
  for (int step = 10; step < 18; ++step) CHECK(pair.step());
  CHECK(countIn(*pair.runtime, PartitionState::Quarantined) == 2);
  for (int step = 18; step < 22; ++step) CHECK(pair.step());
  CHECK(countIn(*pair.runtime, PartitionState::Captured) == 2);
  CHECK(pair.runtime->remarks().count("captured-late") == 2);
  CHECK(pair.runtime->stats().replays == 2 * 4);
}

TEST_CASE("what lies in the program is not tried again", "[law6]") {
  auto runtime = makeRuntime(kIllegal);
  const at::Tensor w = at::rand({4}), b = at::zeros({4});
  int64_t tries = 0;
  RuntimeOptions options;
  options.onCapture = [&](const std::string&, int64_t, int64_t) { ++tries; };
  runtime = makeRuntime(kIllegal, options);
  for (int step = 0; step < 40; ++step) (void)runtime->run("step", {w, b});
  CHECK(tries == 1);
}

TEST_CASE("a required capture that fails is an error in each step", "[law6]") {
  RuntimeOptions options;
  options.requireCapture = true;
  RaisingPair pair(options);
  for (int step = 0; step < 2; ++step) CHECK(pair.step());
  for (int step = 0; step < 3; ++step)
    CHECK_THROWS_WITH(pair.step(), Catch::Contains("raised by an operator"));
  pair.text.clear();
  // Each error came behind the writes of the step's first partition.
  pair.b.copy_(pair.referenceB);
  for (int step = 0; step < 3; ++step) CHECK(pair.step());
}

TEST_CASE(
    "what is held while something is captured is let go with it, also where the capture fails") {
  int made = 0, alive = 0;
  RuntimeOptions options;
  options.whileCapturing = [&] {
    ++made, ++alive;
    return std::shared_ptr<void>(&alive, [&](void*) { --alive; });
  };
  RaisingPair pair(options);
  for (int step = 0; step < 2; ++step) CHECK(pair.step());
  CHECK(made == 0);
  for (int step = 2; step < 10; ++step) CHECK(pair.step());
  CHECK(made == 2);  // each partition once
  CHECK(alive == 0);
  pair.text.clear();
  for (int step = 10; step < 24; ++step) CHECK(pair.step());
  CHECK(countIn(*pair.runtime, PartitionState::Captured) == 2);
  CHECK(made == 4);
  CHECK(alive == 0);
}

TEST_CASE("Ctrl-C in a capture ends the step, and the next one captures", "[law6]") {
  RuntimeOptions options;
  options.isInterrupt = [](const std::exception& error) {
    return std::string(error.what()) == "KeyboardInterrupt";
  };
  RaisingPair pair(options);
  for (int step = 0; step < 2; ++step) CHECK(pair.step());
  pair.text = "KeyboardInterrupt";
  for (int step = 0; step < 3; ++step) {
    const at::Tensor x = at::randn({16, 4}), state = rngState(), b = pair.b.clone();
    CHECK_THROWS_WITH(pair.runtime->run("step", {pair.w, pair.b, x}), "KeyboardInterrupt");
    CHECK(sameBits(rngState(), state));
    CHECK(sameBits(pair.b, b));
  }
  pair.text.clear();
  for (int step = 0; step < 3; ++step) CHECK(pair.step());
  CHECK(countIn(*pair.runtime, PartitionState::Captured) == 2);
  CHECK(remarksOf(*pair.runtime) == "");
}
