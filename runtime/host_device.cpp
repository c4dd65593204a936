#include "runtime/device.h"
#include "runtime/host_allocator.h"
#include "runtime/host_capture.h"
#include "runtime/host_slab.h"

#include <cstring>

namespace gravure {
namespace {

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
  void synchronize() override {}

 private:
  bool poison_;
};

}  // namespace

int64_t releaseHostMemory() { return hostPages().releaseAtRest(); }

std::unique_ptr<Device> makeHostDevice(bool poison) { return std::make_unique<HostDevice>(poison); }

}  // namespace gravure
