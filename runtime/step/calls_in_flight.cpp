#include "runtime/calls_in_flight.h"

#include <algorithm>
#include <utility>

namespace gravure {

CallsInFlight::CallsInFlight(Program program, std::function<std::unique_ptr<Device>()> device,
                             RuntimeOptions options, size_t most)
    : device_(std::move(device)), options_(std::move(options)), most_(most) {
  TORCH_CHECK(most_ > 0, "calls in flight need one instance at least");
  instances_.push_back(std::make_unique<Runtime>(std::move(program), device_(), options_));
}

std::vector<c10::IValue> CallsInFlight::run(const std::string& entry,
                                            std::vector<c10::IValue> inputs) {
  return at(choose(entry, inputs)).run(entry, std::move(inputs));
}

size_t CallsInFlight::choose(const std::string& entry, const std::vector<c10::IValue>& inputs) {
  if (at(0).readsSaved(entry)) {
    const auto saved = std::find_if(instances_.begin(), instances_.end(), [&](const auto& each) {
      return each->hasSaved(entry, inputs);
    });
    // What an uncaptured step saved lies in no arena: any instance takes it so.
    return saved == instances_.end() ? 0 : saved - instances_.begin();
  }
  const auto free = std::find_if(instances_.begin(), instances_.end(),
                                 [](const auto& each) { return !each->holdsSaved(); });
  if (free != instances_.end()) return free - instances_.begin();
  if (instances_.size() < most_) {
    instances_.push_back(std::make_unique<Runtime>(at(0), device_(), options_));
    instances_.back()->warmUpWith(at(0));
  }
  return instances_.size() - 1;
}

}  // namespace gravure
