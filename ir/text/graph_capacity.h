#pragma once
// Capacity of the tables that torch::jit::Graph keeps of its nodes, values and names.

#include <cstddef>

namespace torch::jit {
struct Graph;
}

namespace gravure {

/// Reserves capacity for `count` nodes, values and names. A table that grows visits each of its members,
/// which lie all over memory: half the time of reading a large program, and of the pass that happens to
/// name one value too many.
void reserveNodes(torch::jit::Graph& graph, size_t count);

}  // namespace gravure
