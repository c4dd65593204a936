#pragma once

#include <ctime>

namespace gravure::tool {

/// Milliseconds of processor time that this thread has taken. What is measured here uses one core and
/// waits for nothing, so other processes on the machine do not count.
inline double processorMs() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return double(time.tv_sec) * 1e3 + double(time.tv_nsec) / 1e6;
}

/// Those that `work` takes.
template <typename Work>
double processorMs(Work&& work) {
  const double begin = processorMs();
  work();
  return processorMs() - begin;
}

}  // namespace gravure::tool
