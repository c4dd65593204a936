#pragma once
// What each call of a run takes: the thread that makes it, and the device.

#include <c10/core/Device.h>

#include <cstdint>
#include <string>
#include <vector>

namespace gravure {

/// Times in nanoseconds.
struct CallTime {
  int64_t step = 0;         // the call, as CallMark names it
  int64_t hostTime = 0;     // of the thread, with what the watch itself takes
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

}  // namespace gravure
