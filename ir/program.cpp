#include "ir/program.h"

#include "ir/cudagraph_ops.h"
#include "ir/op_facts.h"

#include <algorithm>

namespace gravure {
namespace {

const std::string& stringAttrOrEmpty(const Node* node, c10::Symbol name) {
  static const std::string empty;
  return node->hasAttribute(name) ? node->s(name) : empty;
}

void setOrDrop(Node* node, c10::Symbol name, std::string text) {
  if (!text.empty()) {
    node->s_(name, std::move(text));
  } else if (node->hasAttribute(name)) {
    node->removeAttribute(name);
  }
}

}  // namespace

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

const std::string& sourceOf(const Node* node) { return stringAttrOrEmpty(node, attr::source); }
const std::string& moduleOf(const Node* node) { return stringAttrOrEmpty(node, attr::module); }

void setSource(Node* node, std::string source, std::string module) {
  setOrDrop(node, attr::source, std::move(source));
  setOrDrop(node, attr::module, std::move(module));
}

const std::string& overloadOf(const Node* node) {
  static const std::string none;
  if (!node->hasAttribute(attr::facts)) return stringAttrOrEmpty(node, attr::overload);
  const c10::FunctionSchema* schema = factsOf(node).schema;
  return schema ? schema->overload_name() : none;
}

void setOverload(Node* node, std::string overload) {
  setOrDrop(node, attr::overload, std::move(overload));
  if (node->hasAttribute(attr::facts)) node->removeAttribute(attr::facts);
}

}  // namespace gravure
