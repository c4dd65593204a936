#include "ir/core/attributes.h"

#include <torch/csrc/jit/ir/ir.h>

#include <vector>

namespace gravure {
namespace {

using torch::jit::AttributeValue;
using torch::jit::Node;

std::vector<AttributeValue::Ptr>& attributesOf(Node& node);

/// A node shows its attributes to nobody, but an explicit instantiation may name private members.
template <auto attributes>
struct HiddenAttributes {
  friend std::vector<AttributeValue::Ptr>& attributesOf(Node& node) { return node.*attributes; }
};
template struct HiddenAttributes<&Node::values_>;

}  // namespace

AttributeValue* findAttribute(const Node* node, c10::Symbol name) {
  for (const AttributeValue::Ptr& attribute : attributesOf(const_cast<Node&>(*node))) {
    if (attribute->name == name) return attribute.get();
  }
  return nullptr;
}

void dropAttribute(Node* node, c10::Symbol name) {
  if (findAttribute(node, name)) node->removeAttribute(name);
}

void appendAttribute(Node* node, AttributeValue::Ptr attribute) {
  attributesOf(*node).push_back(std::move(attribute));
}

}  // namespace gravure
