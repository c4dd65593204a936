#pragma once
// Every node below a block or a node, whatever branches and partitions it stands in.

#include "ir/core/program.h"

namespace gravure {

template <typename Visit>
void forEachNode(const Node* node, Visit&& visit);

/// Calls `visit(node)` for each node below `block`, in program order.
template <typename Visit>
void forEachNode(const Block* block, Visit&& visit) {
  for (const Node* node : block->nodes()) forEachNode(node, visit);
}

/// The same for `node` itself and what stands in its blocks.
template <typename Visit>
void forEachNode(const Node* node, Visit&& visit) {
  visit(node);
  for (const Block* block : node->blocks()) forEachNode(block, visit);
}

}  // namespace gravure
