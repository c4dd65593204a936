#pragma once
// A device that hands on all that it is asked: for one that replaces a part of another, in tests and
// benchmarks.

#include "runtime/device/device.h"

#include <memory>
#include <utility>

namespace gravure {

class ForwardingDevice : public Device {
 public:
  explicit ForwardingDevice(std::unique_ptr<Device> to) : to_(std::move(to)) {}

  std::string name() const override { return to_->name(); }
  c10::Device tensorDevice() const override { return to_->tensorDevice(); }
  int64_t alignment() const override { return to_->alignment(); }
  void installAllocator() override { to_->installAllocator(); }
  std::shared_ptr<Slab> makeSlab(const ArenaShape& shape) override { return to_->makeSlab(shape); }
  int64_t releaseMemory() override { return to_->releaseMemory(); }
  std::unique_ptr<Capture> beginCapture(const std::vector<at::Generator>& generators) override {
    return to_->beginCapture(generators);
  }
  bool poisons() const override { return to_->poisons(); }
  void poison(void* address, int64_t bytes) override { to_->poison(address, bytes); }
  void beginWarmUp(int64_t expected) override { to_->beginWarmUp(expected); }
  void endWarmUp() override { to_->endWarmUp(); }
  void dropWarmUp() override { to_->dropWarmUp(); }
  bool callerCaptures() const override { return to_->callerCaptures(); }
  bool seedsDropoutNext() const override { return to_->seedsDropoutNext(); }
  std::unique_ptr<Marker> makeMarker() override { return to_->makeMarker(); }
  void synchronize() override { to_->synchronize(); }
  void finishReplays() noexcept override { to_->finishReplays(); }

 private:
  const std::unique_ptr<Device> to_;
};

}  // namespace gravure
