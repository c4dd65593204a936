#pragma once
// A look at a node's attributes without PyTorch's checks of their names.
//
// Node::hasAttribute asks of each name whether it is an attribute's, and of names that are not
// PyTorch's own with a lock; passes look for attributes that most nodes do not have.

#include <torch/csrc/jit/ir/attributes.h>

namespace torch::jit {
struct Node;
}

namespace gravure {

/// The attribute of this name; nullptr if `node` has none. It stays the node's.
torch::jit::AttributeValue* findAttribute(const torch::jit::Node* node, c10::Symbol name);

/// Takes the attribute of this name away; nothing if `node` has none.
void dropAttribute(torch::jit::Node* node, c10::Symbol name);

/// Appends an attribute of a name that `node` does not have.
void appendAttribute(torch::jit::Node* node, torch::jit::AttributeValue::Ptr attribute);

}  // namespace gravure
