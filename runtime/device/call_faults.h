#pragma once
// Faults of calls that the runtime makes to a driver or to PyTorch's allocator, for tests.

#include <cstdint>
#include <string>

namespace gravure {

/// Counts the calls that may fail, in a whole life of programs, and fails the one that it is told to.
/// Of the process: arenas and allocators are no single device's.
class CallFaults {
 public:
  /// From now on calls are counted, and the `pass`-th one fails; 0: none does.
  static void start(int64_t pass);
  /// Calls since then; none is counted, nor fails, from now on.
  static int64_t stop();
  /// The one that failed: "the mapping of pages"; "" if none did.
  static std::string failed();
};

/// Before such a call. Throws c10::Error if it is the one that fails.
void passCall(const char* what);
/// The same for a call whose caller does without it: false if it is the one that fails.
bool callSucceeds(const char* what) noexcept;

}  // namespace gravure
