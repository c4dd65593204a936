#pragma once
// What each call of a run takes: of the thread that makes it, and of the device.

#include <ATen/record_function.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace gravure {

/// What a call puts on the device, in nanoseconds.
struct CallTime {
  int64_t position = 0;     // of the call, as CallMark names it
  int64_t deviceTime = 0;   // of its kernels and copies, as CUPTI measured them
  int64_t deviceItems = 0;  // how many these are
};

/// From its making to `end`, PyTorch's own profiler (kineto) watches the thread's CallMarks and the device.
/// Where that is not possible, as while somebody else profiles, nothing is found and `why` says so; the run
/// is what it is without. No error leaves it.
class CallWatch {
 public:
  explicit CallWatch(c10::Device device);
  ~CallWatch();
  CallWatch(const CallWatch&) = delete;
  CallWatch& operator=(const CallWatch&) = delete;

  /// Once; behind it nobody watches. The device is idle.
  std::vector<CallTime> end();
  const std::string& why() const { return why_; }

 private:
  bool watches_ = false;
  std::string why_;
};

/// While alive, what the thread takes for each of its CallMarks, by call, in nanoseconds. Nothing but a clock is
/// read: a profiler would make each call longer by as much as a kernel's launch takes. One at a time on a
/// thread.
class CallClock {
 public:
  CallClock();
  ~CallClock();
  CallClock(const CallClock&) = delete;
  CallClock& operator=(const CallClock&) = delete;

  const std::map<int64_t, int64_t>& times() const { return times_; }
  /// What the marks themselves have taken so far, outside of these times.
  int64_t ownTime() const { return marks_ * markTime_; }

 private:
  static std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& mark);
  static void end(const at::RecordFunction& mark, at::ObserverContext* begun);

  uint64_t handle_;
  int64_t marks_ = 0, markTime_ = 0;
  std::map<int64_t, int64_t> times_;
};

}  // namespace gravure
