#include "python/csrc/warm_up_pool.h"

#include "python/csrc/planning/load_options.h"
#include "runtime/device/device.h"

#include <c10/util/Exception.h>

#include <memory>
#include <utility>

namespace gravure {
namespace {

/// The device that the thread has entered, or nullptr.
thread_local std::unique_ptr<Device> entered;

}  // namespace

void enterWarmUpPool(const std::string& device) {
  TORCH_CHECK(entered == nullptr, "this thread is in the warm-ups' pool already");
  auto made = makeDevice(device, /*poison=*/false);
  made->installAllocator();
  made->beginWarmUp(0);
  entered = std::move(made);
}

void leaveWarmUpPool() {
  if (const auto left = std::exchange(entered, nullptr)) left->endWarmUp();
}

}  // namespace gravure
