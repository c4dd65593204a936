#include "ir/core/attributes.h"

#include "ir/torch_private/node_attributes.h"

namespace gravure {

using torch::jit::AttributeValue;
using torch::jit::Node;
using torch_private::attributesOf;

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
