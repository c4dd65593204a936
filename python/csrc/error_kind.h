#pragma once
// Of which of Python's types an error is, for calls that Python sees as RuntimeError alone.
//
// Methods of torch.classes raise RuntimeError whatever was thrown; operators raise IndexError,
// OutOfMemoryError and so on (torch/csrc/Exceptions.h), and so do the backwards that autograd calls.

#include <exception>
#include <string>
#include <utility>

namespace gravure {

/// The last error that passed keepingKind() on this thread, by its class in c10: "IndexError"; "" for
/// one that is a RuntimeError, and from the second call on.
std::string takeErrorKind();
void noteErrorKind(const std::exception& error);

/// Calls `run`, and notes what is thrown.
template <typename Run>
auto keepingKind(Run&& run) {
  try {
    return std::forward<Run>(run)();
  } catch (const std::exception& error) {
    noteErrorKind(error);
    throw;
  }
}

}  // namespace gravure
