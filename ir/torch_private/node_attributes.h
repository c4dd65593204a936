#pragma once
// Private: torch::jit::Node::values_, the attributes of a node.
//
// For a look at a node's attributes without checks of their names: Node::hasAttribute asks of each name
// whether it is an attribute's, and of names that are not PyTorch's own with a lock; and for an attribute
// of a kind that PyTorch does not have. Without it passes would take half as long again, and what is known
// of a node's operator would have to be kept beside the graph.

#include <torch/csrc/jit/ir/ir.h>

#include <vector>

namespace gravure::torch_private {
namespace {

std::vector<torch::jit::AttributeValue::Ptr>& attributesOf(torch::jit::Node& node);

/// The standard lets an explicit instantiation name a private member ([temp.spec.general]/6).
template <auto attributes>
struct NodeAttributes {
  friend std::vector<torch::jit::AttributeValue::Ptr>& attributesOf(torch::jit::Node& node) {
    return node.*attributes;
  }
};
template struct NodeAttributes<&torch::jit::Node::values_>;

}  // namespace
}  // namespace gravure::torch_private
