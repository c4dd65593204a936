#include "python/csrc/warm_up_pool.h"

#include "python/csrc/planning/load_options.h"
#include "runtime/device/device.h"

#include <cstdint>
#include <memory>
#include <utility>

namespace gravure {
namespace {

/// The device that the thread has entered, or nullptr; and how often.
thread_local std::unique_ptr<Device> entered;
thread_local int64_t depth = 0;

}  // namespace

void enterWarmUpPool(const std::string& device) {
  if (entered != nullptr) {
    ++depth;
    return;
  }
  auto made = makeDevice(device, /*poison=*/false);
  made->installAllocator();
  made->beginWarmUp(0);
  entered = std::move(made);
}

void leaveWarmUpPool() {
  if (depth > 0) {
    --depth;
    return;
  }
  if (const auto left = std::exchange(entered, nullptr)) left->endWarmUp();
}

}  // namespace gravure
