#pragma once
// Attributes of nodes as constants, whatever kind torch::jit keeps each as.

#include "ir/core/args.h"

#include <ATen/core/symbol.h>

namespace gravure {

/// The value of an attribute as a constant. TORCH_CHECK naming node and attribute if it is of a kind
/// that a program cannot hold (a tensor, a graph, a type).
Arg attributeConstant(const torch::jit::Node* node, c10::Symbol name);
/// Ints, floats, strings, complex numbers and non-empty lists of one of them are kept as
/// TorchScript's i, f, s, c, is, fs, ss, cs; all else (None, bool, device, empty, mixed and nested
/// lists, tuples) as an IValue.
void setAttributeConstant(torch::jit::Node* node, c10::Symbol name, const Arg& constant);

}  // namespace gravure
