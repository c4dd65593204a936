#include "ir/core/location.h"

#include <torch/csrc/jit/ir/ir.h>

namespace gravure {

using torch::jit::Scope;
using torch::jit::Source;
using torch::jit::SourceRange;

const std::string& sourceOf(const Node* node) {
  static const std::string unknown;
  const auto source = node->sourceRange().source();
  return source && source->filename() ? *source->filename() : unknown;
}

std::string_view moduleOf(const Node* node) {
  // scope() changes nothing, and is not const.
  const torch::jit::ScopePtr scope = const_cast<Node*>(node)->scope();
  return scope ? scope->name().toUnqualString() : "";
}

std::string describeWithSource(const Node* node) {
  const std::string& source = sourceOf(node);
  return source.empty() ? describe(node) : describe(node) + " at " + source;
}

void copyLocation(Node* node, const Node* from) {
  node->setSourceRange(from->sourceRange());
  node->setScope(const_cast<Node*>(from)->scope());
}

void Locations::setSource(Node* node, llvm::StringRef line) {
  const auto [at, isNew] = lines_.try_emplace(line);
  if (isNew) {
    // Its text is not known here; whoever prints the range names the line.
    at->second = SourceRange(std::make_shared<Source>(std::string_view(), line.str()), 0, 0);
  }
  node->setSourceRange(at->second);
}

void Locations::setModule(Node* node, llvm::StringRef path) {
  const auto [at, isNew] = modules_.try_emplace(path);
  if (isNew) {
    at->second = c10::make_intrusive<Scope>()->push(c10::Symbol::scope(path.str()));
  }
  node->setScope(at->second);
}

}  // namespace gravure
