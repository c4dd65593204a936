#include "runtime/device/saving_programs.h"

#include <map>
#include <mutex>

namespace gravure {
namespace {

/// Never destroyed: programs may outlive statics.
struct Counts {
  std::mutex mutex;
  std::map<c10::DeviceIndex, int64_t> by;  // of tensors' devices; -1: the host

  static Counts& get() {
    static auto* const counts = new Counts();
    return *counts;
  }
};

}  // namespace

SavingProgram::SavingProgram(c10::Device device) : device_(device) {
  Counts& counts = Counts::get();
  const std::lock_guard lock(counts.mutex);
  ++counts.by[device_.index()];
}

SavingProgram::~SavingProgram() {
  Counts& counts = Counts::get();
  const std::lock_guard lock(counts.mutex);
  --counts.by[device_.index()];
}

bool SavingProgram::areMany(c10::Device device) {
  constexpr int64_t kFew = 2;  // small pages cost two arenas as much as they spare
  Counts& counts = Counts::get();
  const std::lock_guard lock(counts.mutex);
  return counts.by[device.index()] > kFew;
}

}  // namespace gravure
