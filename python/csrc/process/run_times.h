#pragma once
// How long the runs of an entry take, by the path that they take.

#include "runtime/runtime.h"

#include <ATen/core/Dict.h>

#include <algorithm>
#include <chrono>
#include <string>

namespace gravure {

/// Of some runs of one entry, in nanoseconds of the thread that calls.
struct PathTimes {
  int64_t runs = 0, total = 0, least = 0;

  void add(int64_t time) {
    least = runs == 0 ? time : std::min(least, time);
    total += time;
    ++runs;
  }
  void insertInto(c10::Dict<std::string, int64_t>& named, const std::string& prefix) const {
    named.insert(prefix + "runs", runs);
    named.insert(prefix + "total_ns", total);
    named.insert(prefix + "least_ns", least);
  }
};

/// A run that captures, or fails, counts as neither.
struct RunTimes {
  PathTimes uncaptured, replayed;
  PathTimes plain;                        // uncaptured, and nothing is recorded: what a shadow took
  int64_t launches = 0, stagedBytes = 0;  // in the last run that was replayed

  void add(const RuntimeStats& before, const RuntimeStats& after, std::chrono::nanoseconds time) {
    if (after.uncapturedSteps > before.uncapturedSteps) {
      uncaptured.add(time.count());
    } else if (after.captures == before.captures && after.replays > before.replays) {
      replayed.add(time.count());
      launches = after.replays - before.replays;
      stagedBytes = after.stagedBytes;
    }
  }
};

}  // namespace gravure
