#pragma once
// Rules for attributes, and for the nodes that PyTorch has no schema for.

#include "ir/core/program.h"

#include <string>

namespace gravure {

/// "" if the attributes of `node` are of their kinds and cudagraph:: nodes have none but known ones;
/// else a sentence.
std::string checkAttributes(const Node* node);

/// "" if a structural node (cudagraph::*, prim::If, prim::Constant) has the arguments, outputs and
/// blocks that belong to it; else a sentence.
std::string checkStructure(const Node* node);

}  // namespace gravure
