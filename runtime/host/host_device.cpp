#include "runtime/device/device.h"
#include "runtime/host/host_allocator.h"
#include "runtime/host/host_capture.h"
#include "runtime/host/host_slab.h"

#include <atomic>
#include <cstring>

namespace gravure {
namespace {

/// Work on the host is done when the call returns; an injected fault makes it seem never to be.
class HostMarker final : public Marker {
 public:
  explicit HostMarker(Device& device) : device_(device) {}
  void record() override {
    try {
      device_.passFaultPoint(FaultPoint::Completion);
    } catch (const c10::Error&) {
      stuck_ = true;
    }
  }
  bool reached() override { return !stuck_; }

 private:
  Device& device_;
  std::atomic<bool> stuck_ = false;
};

class HostDevice final : public Device {
 public:
  explicit HostDevice(bool poison) : poison_(poison) {}

  std::string name() const override { return "host"; }
  c10::Device tensorDevice() const override { return c10::Device(c10::kCPU); }
  int64_t alignment() const override { return 64; }  // less changes the bits of some kernels

  void installAllocator() override { installHostAllocator(); }
  std::shared_ptr<Slab> makeSlab(const ArenaShape& shape) override {
    passFaultPoint(FaultPoint::Allocation);
    if (withoutVirtualMemory()) return hostBlocks().make(shape, "GRAVURE_NO_VIRTUAL_MEMORY is set");
    return hostPages().make(shape);
  }
  int64_t releaseMemory() override { return hostPages().releaseAtRest(); }
  std::unique_ptr<Capture> beginCapture(const std::vector<at::Generator>&) override {
    return beginHostCapture(*this);
  }
  bool poisons() const override { return poison_; }
  void poison(void* address, int64_t bytes) override {
    if (poison_) std::memset(address, 0xFF, static_cast<size_t>(bytes));
  }
  std::unique_ptr<Marker> makeMarker() override { return std::make_unique<HostMarker>(*this); }
  void synchronize() override {}

 private:
  bool poison_;
};

}  // namespace

int64_t releaseHostMemory() { return hostPages().releaseAtRest(); }

std::unique_ptr<Device> makeHostDevice(bool poison) { return std::make_unique<HostDevice>(poison); }

}  // namespace gravure
