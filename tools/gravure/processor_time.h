#pragma once

#include <ctime>

namespace gravure::tool {

/// Milliseconds of processor time that `work` takes on this thread. What is measured here uses one
/// core and waits for nothing, so other processes on the machine do not count.
template <typename Work>
double processorMs(Work&& work) {
  auto now = [] {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return double(time.tv_sec) * 1e3 + double(time.tv_nsec) / 1e6;
  };
  const double begin = now();
  work();
  return now() - begin;
}

}  // namespace gravure::tool
