#pragma once
// Recurrent modules that cuDNN runs stand in a program as gravure::recurrent, and as
// gravure::recurrent_backward or gravure::recurrent_backward_donated (recurrent_operators.cpp).

#include "ir/core/program.h"

#include <cstdint>

namespace gravure {

/// The operator calls that `node` counts as, 2 for each layer, where it is one of them: cuDNN launches
/// several kernels for each layer and point of time. 0 if it is something else.
int64_t recurrentCalls(const Node* node);

/// Whether `node` is one of them, with dropout: it uses the state that cuDNN draws from, which lies
/// elsewhere once it was seeded anew (runtime/device/dropout_seedings.h).
bool usesCudnnDropout(const Node* node);

/// Whether `node` is the backward that writes over its reserve, which it is donated (compiled_op.h).
bool isDonatedReserve(const Node* node);

}  // namespace gravure
