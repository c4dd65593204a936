#pragma once
// What a program tells its user while it is loaded and run, in Python's logger "gravure".

#include "ir/core/remark.h"

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace gravure {

/// As Python's logging counts them.
enum class LogLevel : int64_t { Info = 20, Warning = 30 };

/// Through the operator gravure::log, which Python implements; nothing where it does not.
void logToUser(LogLevel level, const std::vector<std::string>& messages);

/// Logs the missed ones among `remarks` from `first` on: what will not mend itself as a warning.
void logMissed(const Remarks& remarks, size_t first);

/// How far a long capture is, from the second second on: through the operator gravure::progress, which
/// Python implements; and a line every few seconds.
class CaptureProgress {
 public:
  /// Before a capture: `done` of `total` partitions of `entry` have none to come.
  void show(const std::string& entry, int64_t done, int64_t total);
  /// Behind the step.
  void end() {
    if (shown_) tell("", 0, 0);
  }

 private:
  void tell(const std::string& what, int64_t done, int64_t total);

  using Clock = std::chrono::steady_clock;
  Clock::time_point begun_;
  Clock::time_point said_;
  int64_t last_ = -1;
  bool shown_ = false;
};

}  // namespace gravure
