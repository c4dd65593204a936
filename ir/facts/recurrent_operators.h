#pragma once
// Recurrent modules that cuDNN runs stand in a program as gravure::recurrent and
// gravure::recurrent_backward (recurrent_operators.cpp).

#include "ir/core/program.h"

#include <cstdint>

namespace gravure {

/// The operator calls that `node` counts as, 2 for each layer, where it is one of the two: cuDNN launches
/// several kernels for each layer and point of time. 0 if it is something else.
int64_t recurrentCalls(const Node* node);

/// Whether `node` is one of the two, with dropout: it uses the state that cuDNN draws from, which lies
/// elsewhere once it was seeded anew (runtime/device/dropout_seedings.h).
bool usesCudnnDropout(const Node* node);

}  // namespace gravure
