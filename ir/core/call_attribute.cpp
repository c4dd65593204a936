#include "ir/core/call_attribute.h"

#include "ir/core/cudagraph_ops.h"

namespace gravure {

CallAttribute::CallAttribute() : ScalarAttributeValue(attr::call, 0) {}

CallAttribute* findCall(const Node* node) {
  // No other attribute has this name: program text cannot write it.
  return static_cast<CallAttribute*>(findAttribute(node, attr::call));
}

CallAttribute& callOf(Node* node) {
  if (CallAttribute* call = findCall(node)) return *call;
  auto made = std::make_unique<CallAttribute>();
  CallAttribute& call = *made;
  appendAttribute(node, std::move(made));
  return call;
}

}  // namespace gravure
