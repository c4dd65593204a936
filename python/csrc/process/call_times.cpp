#include "python/csrc/process/call_times.h"

#include "runtime/device/step_mark.h"

#include <c10/util/Exception.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <map>
#include <memory>
#include <set>
#include <unordered_map>
#include <utility>

namespace gravure {

namespace {

namespace impl = torch::profiler::impl;
namespace profiler = torch::autograd::profiler;
using Event = profiler::KinetoEvent;

impl::ProfilerConfig config() { return impl::ProfilerConfig(impl::ProfilerState::KINETO); }

std::set<impl::ActivityType> activitiesOf(c10::Device device) {
  std::set<impl::ActivityType> activities{impl::ActivityType::CPU};
  if (device.is_cuda()) activities.insert(impl::ActivityType::CUDA);
  return activities;
}

std::string textOf(const std::exception& error) {
  const auto* ours = dynamic_cast<const c10::Error*>(&error);
  const std::string text = ours ? ours->what_without_backtrace() : error.what();
  return text.substr(0, text.find('\n'));
}

bool isMark(const Event& event) {
  return event.deviceType() == c10::DeviceType::CPU &&
         event.scope() == static_cast<uint8_t>(kCallScope) && !event.name().empty() &&
         event.name().find_first_not_of("0123456789") == std::string::npos;
}

/// A call of CUDA's own that puts work on the device.
bool isLaunch(const Event& event) {
  return event.deviceType() == c10::DeviceType::CPU && event.name().rfind("cu", 0) == 0;
}

/// Marks that follow one another on one thread, by when they begin.
class Marks {
 public:
  explicit Marks(const std::vector<Event>& events) {
    for (const Event& event : events) {
      if (!isMark(event)) continue;
      CallTime time;
      time.position = std::stoll(event.name());
      byCorrelation_[event.correlationId()] = times_.size();
      byBegin_[event.startNs()] = times_.size();
      ends_.push_back(event.endNs());
      times_.push_back(time);
    }
  }
  /// nullptr where that is no mark's.
  CallTime* ofCorrelation(uint64_t id) {
    const auto found = byCorrelation_.find(id);
    return id == 0 || found == byCorrelation_.end() ? nullptr : &times_[found->second];
  }
  CallTime* at(uint64_t time) {
    auto found = byBegin_.upper_bound(time);
    if (found == byBegin_.begin()) return nullptr;
    --found;
    return time <= ends_[found->second] ? &times_[found->second] : nullptr;
  }
  std::vector<CallTime> take() { return std::move(times_); }

 private:
  std::vector<CallTime> times_;
  std::vector<uint64_t> ends_;
  std::unordered_map<uint64_t, size_t> byCorrelation_;
  std::map<uint64_t, size_t> byBegin_;
};

std::vector<CallTime> timesOf(const std::vector<Event>& events) {
  Marks marks(events);
  std::unordered_map<uint64_t, uint64_t> launches;  // when, by CUDA's own number
  for (const Event& event : events) {
    if (isLaunch(event)) launches.emplace(event.correlationId(), event.startNs());
  }
  for (const Event& event : events) {
    if (event.deviceType() == c10::DeviceType::CPU) continue;
    CallTime* call = marks.ofCorrelation(event.linkedCorrelationId());
    if (!call) {
      const auto launch = launches.find(event.correlationId());
      if (launch != launches.end()) call = marks.at(launch->second);
    }
    if (!call) continue;  // a copy of inputs or results, or somebody else's
    call->deviceTime += static_cast<int64_t>(event.durationNs());
    ++call->deviceItems;
  }
  return marks.take();
}

}  // namespace

CallWatch::CallWatch(c10::Device device) {
  // Where there is no GPU, kineto says so as an error, once.
  constexpr const char* kQuiet = "5";
  if (!device.is_cuda()) setenv("KINETO_LOG_LEVEL", kQuiet, /*overwrite=*/0);
  try {
    if (impl::profilerEnabled() || profiler::isProfilerEnabledInMainThread()) {
      why_ = "another profiler was running";
      return;
    }
    const std::set<impl::ActivityType> activities = activitiesOf(device);
    profiler::prepareProfiler(config(), activities);
    profiler::enableProfiler(config(), activities, {kCallScope});
    watches_ = true;
  } catch (const std::exception& error) {
    why_ = textOf(error);
  }
}

CallWatch::~CallWatch() { (void)end(); }

std::vector<CallTime> CallWatch::end() {
  if (!std::exchange(watches_, false)) return {};
  try {
    const auto found = profiler::disableProfiler();
    std::vector<CallTime> times = timesOf(found->events());
    if (times.empty()) why_ = "PyTorch's profiler saw no call";
    return times;
  } catch (const std::exception& error) {
    why_ = textOf(error);
    return {};
  }
}

namespace {

using Clock = std::chrono::steady_clock;

struct BegunCall : at::ObserverContext {
  Clock::time_point begin;
};

thread_local CallClock* clockOfThread = nullptr;

int64_t nanoseconds(Clock::duration time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time).count();
}

}  // namespace

std::unique_ptr<at::ObserverContext> CallClock::begin(const at::RecordFunction&) {
  auto begun = std::make_unique<BegunCall>();
  begun->begin = Clock::now();
  return begun;
}

void CallClock::end(const at::RecordFunction& mark, at::ObserverContext* begun) {
  const auto time = Clock::now() - static_cast<BegunCall*>(begun)->begin;
  if (!clockOfThread) return;
  ++clockOfThread->marks_;
  clockOfThread->times_[std::stoll(mark.name())] += nanoseconds(time);
}

CallClock::CallClock() {
  TORCH_INTERNAL_ASSERT(!clockOfThread, "two clocks of calls on one thread");
  handle_ = at::addThreadLocalCallback(
      at::RecordFunctionCallback(&CallClock::begin, &CallClock::end).scopes({kCallScope}));
  clockOfThread = this;
  constexpr int64_t kTried = 64;
  const auto before = Clock::now();
  for (int64_t i = 0; i < kTried; ++i) const CallMark empty(i);
  markTime_ = nanoseconds(Clock::now() - before) / kTried;
  marks_ = 0;
  times_.clear();
}

CallClock::~CallClock() {
  clockOfThread = nullptr;
  at::removeCallback(handle_);
}

}  // namespace gravure
