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

/// Behind an entry's first run, which makes libraries ready, the next ones are uncaptured, record nothing
/// and are timed: the whole of a run, from an idle device to an idle device, and then each call of one. The
/// first replays are timed as a whole, too. What runs gives the bits that it gives without.
class TimedRuns {
 public:
  std::vector<c10::IValue> run(Runtime& runtime, const std::string& entry,
                               std::vector<c10::IValue> inputs);

  /// One object an entry, by name:
  ///   uncaptured_ns, replayed_ns   the shortest run, 0 where none was timed
  ///   watched_ns                   the run whose calls were timed: longer, since somebody looked
  ///   calls                        one array a call: its number (step_detail.h), nanoseconds of the
  ///                                thread, nanoseconds of the device, kernels and copies on it
  ///   why                          why calls have no times; "" if they have
  void printJson(llvm::raw_ostream& os) const;

 private:
  struct EntryTimes {
    int64_t runs = 0, replays = 0;
    int64_t uncaptured = 0, replayed = 0, watched = 0;
    std::vector<CallTime> calls;
    std::string why = "no run was timed yet";
  };
  std::map<std::string, EntryTimes> entries_;
};

}  // namespace gravure
