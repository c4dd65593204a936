#pragma once
// The host device, of which a test's own device replaces a part.
#include "runtime/device/device.h"

namespace gravure {

class DeviceOnHost : public Device {
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
    return host_->beginCapture(generators);
  }
  bool poisons() const override { return host_->poisons(); }
  void poison(void* address, int64_t bytes) override { host_->poison(address, bytes); }
  std::unique_ptr<Marker> makeMarker() override { return host_->makeMarker(); }
  void synchronize() override { host_->synchronize(); }

 private:
  const std::unique_ptr<Device> host_ = makeHostDevice();
};

}  // namespace gravure
