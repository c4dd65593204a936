#include "tools/gravure/bench/empty_launches.h"

#include "runtime/device/forwarding_device.h"

#include <utility>

namespace gravure::tool {
namespace {

/// Keeps what was captured alive, as a graph does.
class EmptyLaunch final : public Executable {
 public:
  explicit EmptyLaunch(std::unique_ptr<Executable> captured) : captured_(std::move(captured)) {}
  void replay() override {}

 private:
  const std::unique_ptr<Executable> captured_;
};

class EmptyCapture final : public Capture {
 public:
  explicit EmptyCapture(std::unique_ptr<Capture> capture) : capture_(std::move(capture)) {}
  void call(const Call& call, const c10::IValue& rng, torch::jit::Stack& stack) override {
    capture_->call(call, rng, stack);
  }
  std::unique_ptr<Executable> finish() override {
    return std::make_unique<EmptyLaunch>(capture_->finish());
  }

 private:
  const std::unique_ptr<Capture> capture_;
};

class EmptyLaunches final : public ForwardingDevice {
 public:
  EmptyLaunches() : ForwardingDevice(makeHostDevice(/*poison=*/false)) {}
  std::unique_ptr<Capture> beginCapture(const std::vector<at::Generator>& generators) override {
    return std::make_unique<EmptyCapture>(ForwardingDevice::beginCapture(generators));
  }
};

}  // namespace

std::unique_ptr<Device> makeEmptyLaunches() { return std::make_unique<EmptyLaunches>(); }

}  // namespace gravure::tool
