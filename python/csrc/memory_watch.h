#pragma once
// Whether tensors that Python passes share memory, looked at from call to call: `.data =` and `set_` change that,
// and Python says nothing of it.

#include <cstdint>
#include <vector>

namespace gravure {

/// A function of Python's as direct_calls.h makes them, of a tuple of `count` tensors: True where none of them shares
/// memory with one at `written`; False where one may, for who asks LoadedProgram::sharedTensors() then. Only
/// what lies elsewhere than in the last call is compared. 0 where makeDirectCall() is.
int64_t makeMemoryWatch(int64_t count, const std::vector<int64_t>& written);

}  // namespace gravure
