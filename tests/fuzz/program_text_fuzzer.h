#pragma once
// What must hold of the reader for any bytes; tools/fuzz looks for bytes of which it does not hold.

#include <cstddef>
#include <cstdint>

/// Throws std::logic_error if the bytes are neither refused with a place inside them nor read as a
/// program that survives printing.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
