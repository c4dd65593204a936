#pragma once
// Whether lists and dictionaries of Python's have the objects that they had.

#include <cstdint>

namespace gravure {

/// A function of Python's, as DirectCall is one: `f(container, noted)` is True where the members of a list are
/// those of the list `noted`; where the keys and values of a dictionary are, one behind the other. Each the same
/// object, which nothing of it is asked for. False for any other container. 0 where the process has no Python.
int64_t makeSameObjects();

}  // namespace gravure
