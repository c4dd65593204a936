#include "ir/core/program.h"

#include "ir/core/call_attribute.h"
#include "ir/core/cudagraph_ops.h"

#include <algorithm>

namespace gravure {

const Entry* Program::find(std::string_view name) const {
  auto at =
      std::find_if(entries.begin(), entries.end(), [&](const Entry& e) { return e.name == name; });
  return at == entries.end() ? nullptr : &*at;
}

Entry* Program::find(std::string_view name) {
  return const_cast<Entry*>(static_cast<const Program*>(this)->find(name));
}

Program Program::clone() const {
  Program copy = *this;
  for (Entry& entry : copy.entries) entry.graph = entry.graph->copy();
  return copy;
}

const char* roleName(InputRole role) {
  switch (role) {
    case InputRole::Unspecified: return "";
    case InputRole::Parameter: return "parameter";
    case InputRole::Buffer: return "buffer";
    case InputRole::Constant: return "constant";
    case InputRole::UserInput: return "user_input";
    case InputRole::Tangent: return "tangent";
    case InputRole::Saved: return "saved";
    case InputRole::RngState: return "rng_state";
    case InputRole::SymInt: return "symint";
  }
  return "";
}

const char* roleName(OutputRole role) {
  switch (role) {
    case OutputRole::Unspecified: return "";
    case OutputRole::Loss: return "loss";
    case OutputRole::Gradient: return "gradient";
    case OutputRole::Saved: return "saved";
    case OutputRole::Output: return "output";
    case OutputRole::Mutation: return "mutation";
    case OutputRole::Alias: return "alias";
  }
  return "";
}

bool isKeptByCaller(InputRole role) {
  return role == InputRole::Parameter || role == InputRole::Buffer || role == InputRole::Constant;
}

std::string describe(const Node* node) {
  std::string text;
  if (!node->outputs().empty()) text = "%" + node->output(0)->debugName() + " = ";
  text += node->kind().toQualString();
  if (!overloadOf(node).empty()) text += "." + overloadOf(node);
  return text;
}

const std::string& overloadOf(const Node* node) {
  static const std::string none;
  const CallAttribute* call = findCall(node);
  if (!call || !call->facts) {
    return findAttribute(node, attr::overload) ? node->s(attr::overload) : none;
  }
  return call->schema ? call->schema->overload_name() : none;
}

void setOverload(Node* node, std::string overload) {
  if (overload.empty()) {
    dropAttribute(node, attr::overload);
  } else {
    node->s_(attr::overload, std::move(overload));
  }
  if (CallAttribute* call = findCall(node)) {
    call->facts = nullptr;
    call->schema = nullptr;
  }
}

}  // namespace gravure
