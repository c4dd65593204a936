#pragma once
// Several calls of one program in flight: an instance for each.

#include "runtime/runtime.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace gravure {

/// A forward that comes while what an earlier one saved is held needs captures at other addresses. So there
/// are several runtimes of one program, which is made ready once; what one of them records in its warm-up
/// holds for all. One step at a time; backwards in any order, or never.
class CallsInFlight {
 public:
  /// `device` makes a device, the same for each instance. There are `most` instances at most, one at least
  /// (TORCH_CHECK): the last one runs what goes beyond that, uncaptured.
  CallsInFlight(Program program, std::function<std::unique_ptr<Device>()> device,
                RuntimeOptions options = {}, size_t most = 32);

  /// As Runtime::run(), by the instance that choose() names.
  std::vector<c10::IValue> run(const std::string& entry, std::vector<c10::IValue> inputs);
  /// Of an entry that is given saved values: the instance that saved them. Else the first of which nobody
  /// holds any; a further one is made where there is none.
  size_t choose(const std::string& entry, const std::vector<c10::IValue>& inputs);

  size_t count() const { return instances_.size(); }
  /// For callers that ask choose() themselves.
  Runtime& at(size_t index) { return *instances_.at(index); }

 private:
  const std::function<std::unique_ptr<Device>()> device_;
  const RuntimeOptions options_;
  const size_t most_;
  std::vector<std::unique_ptr<Runtime>> instances_;
};

}  // namespace gravure
