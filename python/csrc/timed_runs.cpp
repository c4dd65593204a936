#include "python/csrc/timed_runs.h"

#include <llvm/Support/JSON.h>
#include <llvm/Support/raw_ostream.h>

#include <algorithm>
#include <chrono>
#include <utility>

namespace gravure {

namespace {

// Runs of an entry, counted from 1. Uncaptured ones have memory of their own to find, hence two.
constexpr int64_t kLastPlain = 3;
constexpr int64_t kWatched = 4;
constexpr int64_t kLast = 64;    // an entry that is not replayed by then is left alone
constexpr int64_t kReplays = 8;  // that are timed

class Stopwatch {
 public:
  explicit Stopwatch(Device& device) : device_(device) {
    device_.synchronize();
    begin_ = std::chrono::steady_clock::now();
  }
  /// Until the device is idle again.
  int64_t read() const {
    device_.synchronize();
    const auto time = std::chrono::steady_clock::now() - begin_;
    return std::chrono::duration_cast<std::chrono::nanoseconds>(time).count();
  }

 private:
  Device& device_;
  std::chrono::steady_clock::time_point begin_;
};

int64_t leastOf(int64_t known, int64_t found) {
  return known == 0 ? found : std::min(known, found);
}

}  // namespace

std::vector<c10::IValue> TimedRuns::run(Runtime& runtime, const std::string& name,
                                        std::vector<c10::IValue> inputs) {
  EntryTimes& times = entries_[name];
  const int64_t number = ++times.runs;
  Device& device = runtime.device();
  // A graph of the caller's takes no waits, and its kernels run later.
  if (number == 1 || number > kLast || times.replays >= kReplays || device.callerCaptures())
    return runtime.run(name, std::move(inputs));
  if (number <= kLastPlain) {
    const Stopwatch watch(device);
    auto results = runtime.runUncaptured(name, std::move(inputs));
    times.uncaptured = leastOf(times.uncaptured, watch.read());
    return results;
  }
  if (number == kWatched) {
    CallWatch calls(device.tensorDevice());  // takes its time to begin, and to end
    const Stopwatch watch(device);
    auto results = runtime.runTimed(name, std::move(inputs));
    times.watched = watch.read();
    times.calls = calls.end();
    times.why = calls.why();
    return results;
  }
  const RuntimeStats before = runtime.stats();
  const Stopwatch watch(device);
  auto results = runtime.run(name, std::move(inputs));
  const RuntimeStats& after = runtime.stats();
  const bool uncaptured = after.uncapturedSteps > before.uncapturedSteps;
  if (!uncaptured && after.captures == before.captures && after.replays > before.replays) {
    times.replayed = leastOf(times.replayed, watch.read());
    ++times.replays;
  }
  return results;
}

void TimedRuns::printJson(llvm::raw_ostream& os) const {
  llvm::json::OStream json(os);
  json.object([&] {
    for (const auto& [name, times] : entries_) {
      json.attributeObject(name, [&, &times = times] {
        json.attribute("uncaptured_ns", times.uncaptured);
        json.attribute("replayed_ns", times.replayed);
        json.attribute("watched_ns", times.watched);
        json.attributeArray("calls", [&] {
          for (const CallTime& call : times.calls) {
            json.array([&] {
              for (int64_t each : {call.step, call.hostTime, call.deviceTime, call.deviceItems})
                json.value(each);
            });
          }
        });
        json.attribute("why", llvm::json::fixUTF8(times.why));
      });
    }
  });
}

}  // namespace gravure
