#pragma once
// What Python raises to end a program, seen without Python's headers.

#include <exception>

namespace gravure {

/// True for KeyboardInterrupt, SystemExit and GeneratorExit, which no handler of `Exception` sees in
/// Python either. An exception that Python raised in an operator crosses C++ as pybind11's
/// error_already_set, whose text begins with the name of its class.
bool isInterrupt(const std::exception& error);

}  // namespace gravure
