#include "tools/gravure/bench/empty_launches.h"

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

class EmptyLaunches final : public Device {
 public:
  std::string name() const override { return host_->name(); }
  c10::Device tensorDevice() const override { return host_->tensorDevice(); }
  int64_t alignment() const override { return host_->alignment(); }
  void installAllocator() override { host_->installAllocator(); }
  std::shared_ptr<Slab> makeSlab(const ArenaShape& shape) override {
    return host_->makeSlab(shape);
  }
  int64_t releaseMemory() override { return host_->releaseMemory(); }
  std::unique_ptr<Capture> beginCapture(const std::vector<at::Generator>& generators) override {
    return std::make_unique<EmptyCapture>(host_->beginCapture(generators));
  }
  std::unique_ptr<Marker> makeMarker() override { return host_->makeMarker(); }
  void synchronize() override { host_->synchronize(); }

 private:
  const std::unique_ptr<Device> host_ = makeHostDevice(/*poison=*/false);
};

}  // namespace

std::unique_ptr<Device> makeEmptyLaunches() { return std::make_unique<EmptyLaunches>(); }

}  // namespace gravure::tool
