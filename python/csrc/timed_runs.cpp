#include "python/csrc/timed_runs.h"

#include <llvm/Support/JSON.h>
#include <llvm/Support/raw_ostream.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

namespace gravure {

namespace {

// Runs of an entry, counted from 1.
constexpr int64_t kWatched = 2;
constexpr int64_t kLastClocked = 5;
constexpr int64_t kLast = 64;  // an entry that is not replayed by then is left alone

/// Of replays, counted from 1: the first ones, and then fewer and fewer, in which libraries have met the
/// sizes that come. Each takes two waits for the device.
bool isTimed(int64_t replay) { return replay <= 8 || (replay & (replay - 1)) == 0; }

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
  // A graph of the caller's takes no waits, and its kernels run later.
  const bool leaves = number > kLast && times.replays == 0;
  if (number == 1 || leaves || runtime.device().callerCaptures())
    return runtime.run(name, std::move(inputs));
  if (number == kWatched) return runWatched(runtime, name, std::move(inputs));
  if (number <= kLastClocked) return runClocked(runtime, name, std::move(inputs));
  return runReplayed(runtime, name, std::move(inputs));
}

std::vector<c10::IValue> TimedRuns::runWatched(Runtime& runtime, const std::string& name,
                                               std::vector<c10::IValue> inputs) {
  EntryTimes& times = entries_[name];
  CallWatch calls(runtime.device().tensorDevice());
  auto results = runtime.runTimed(name, std::move(inputs));
  runtime.device().synchronize();
  times.calls = calls.end();
  times.why = calls.why();
  return results;
}

std::vector<c10::IValue> TimedRuns::runClocked(Runtime& runtime, const std::string& name,
                                               std::vector<c10::IValue> inputs) {
  EntryTimes& times = entries_[name];
  const CallClock clock;
  const Stopwatch watch(runtime.device());
  auto results = runtime.runTimed(name, std::move(inputs));
  times.uncaptured =
      leastOf(times.uncaptured, std::max<int64_t>(1, watch.read() - clock.ownTime()));
  for (const auto& [call, time] : clock.times()) {
    int64_t& known = times.hostTimes[call];
    known = leastOf(known, time);
  }
  return results;
}

std::vector<c10::IValue> TimedRuns::runReplayed(Runtime& runtime, const std::string& name,
                                                std::vector<c10::IValue> inputs) {
  EntryTimes& times = entries_[name];
  const RuntimeStats before = runtime.stats();
  std::optional<Stopwatch> watch;
  if (isTimed(times.replays + 1)) watch.emplace(runtime.device());
  auto results = runtime.run(name, std::move(inputs));
  const RuntimeStats& after = runtime.stats();
  const bool uncaptured = after.uncapturedSteps > before.uncapturedSteps;
  if (uncaptured || after.captures != before.captures || after.replays == before.replays)
    return results;
  if (watch) times.replayed = leastOf(times.replayed, watch->read());
  ++times.replays;
  return results;
}

void TimedRuns::printJson(llvm::raw_ostream& os) const {
  llvm::json::OStream json(os);
  json.object([&] {
    for (const auto& [name, times] : entries_) {
      json.attributeObject(name, [&, &times = times] {
        json.attribute("uncaptured_ns", times.uncaptured);
        json.attribute("replayed_ns", times.replayed);
        json.attributeArray("calls", [&] {
          for (const CallTime& call : times.calls) {
            const auto clocked = times.hostTimes.find(call.position);
            const int64_t host = clocked == times.hostTimes.end() ? 0 : clocked->second;
            json.array([&] {
              for (int64_t each : {call.position, host, call.deviceTime, call.deviceItems})
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
