#pragma once
// Room in the tables that torch::jit::Graph keeps of its nodes, values and names.

#include <cstddef>

namespace torch::jit {
struct Graph;
}

namespace gravure {

/// Makes room for `count` nodes, values and names at once. Tables that grow look at each of their
/// members again, and those lie all over memory: half the time of reading a large program, and of the
/// pass that happens to name one value too many.
void makeRoom(torch::jit::Graph& graph, size_t count);

}  // namespace gravure
