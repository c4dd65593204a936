#pragma once
// Watches replays of partitions with collectives: what is captured never reaches PyTorch's watchdog.
//
// A thread of its own looks, several times within the shortest timeout, whether replays have ended.
// One that has not within its groups' timeout waits for a rank that does not come: the groups are
// aborted, which ends what the device waits for, and the next step throws. The time counts from the
// launch, as PyTorch's watchdog counts it.

#include "runtime/ranks/process_group.h"

#include <memory>
#include <string>
#include <vector>

namespace gravure {

class Device;

class ReplayWatch {
 public:
  /// A partition whose replays are watched.
  struct Partition {
    std::string name;  // "partition 2 of entry 'forward'"
    std::vector<std::shared_ptr<ProcessGroup>> groups;
  };

  explicit ReplayWatch(Device& device);
  /// Stops watching. Nothing is aborted from then on.
  ~ReplayWatch();
  ReplayWatch(const ReplayWatch&) = delete;
  ReplayWatch& operator=(const ReplayWatch&) = delete;

  /// Returns the partition's index. Before the first launch.
  size_t add(Partition partition);
  /// After a replay, on its thread and stream.
  void launched(size_t index);
  /// Throws c10::Error naming partition and groups if they were aborted.
  void check() const;
  /// After a step that failed: looks at once, since that may be how another rank's abort shows here.
  /// Throws as check() does.
  void checkNow();

 private:
  struct State;
  std::shared_ptr<State> state_;  // the thread's, too
  Device& device_;
};

}  // namespace gravure
