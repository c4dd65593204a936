#pragma once
// What the calls of a program take, and its steps, uncaptured and replayed: the option `times`.

#include "python/csrc/process/call_times.h"
#include "runtime/runtime.h"

#include <ATen/core/ivalue.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace llvm {
class raw_ostream;
}

namespace gravure {

/// Behind an entry's first run, which makes libraries ready, the next ones are uncaptured, record nothing and
/// are timed: what each call puts on the device, in one run that PyTorch's profiler watches; then what each
/// takes of the thread, the least of some runs by a clock alone, since libraries choose an algorithm when
/// they first meet sizes, and a profiler is felt by each launch; and the whole of a run, from an idle device
/// to an idle device. Replays are timed as a whole, too. What runs gives the bits that it gives without.
class TimedRuns {
 public:
  std::vector<c10::IValue> run(Runtime& runtime, const std::string& entry,
                               std::vector<c10::IValue> inputs);

  /// One object an entry, by name:
  ///   uncaptured_ns, replayed_ns   the shortest run, 0 where none was timed
  ///   calls                        one array a call: its number (step_detail.h), nanoseconds of the
  ///                                thread, nanoseconds of the device, kernels and copies on it
  ///   why                          why calls have no times; "" if they have
  void printJson(llvm::raw_ostream& os) const;

 private:
  struct EntryTimes {
    int64_t runs = 0, replays = 0;
    int64_t uncaptured = 0, replayed = 0;
    std::vector<CallTime> calls;
    std::map<int64_t, int64_t> hostTimes;  // by call
    std::string why = "no run was timed yet";
  };
  std::vector<c10::IValue> runWatched(Runtime& runtime, const std::string& entry,
                                      std::vector<c10::IValue> inputs);
  std::vector<c10::IValue> runClocked(Runtime& runtime, const std::string& entry,
                                      std::vector<c10::IValue> inputs);
  std::vector<c10::IValue> runReplayed(Runtime& runtime, const std::string& entry,
                                       std::vector<c10::IValue> inputs);

  std::map<std::string, EntryTimes> entries_;
};

}  // namespace gravure
