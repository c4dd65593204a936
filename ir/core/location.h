#pragma once
// Location: where a node comes from, kept as torch::jit keeps it: the line of the user's code as the node's
// source range, the module as its scope. Nodes of one line, or of one module, share theirs.

#include "ir/core/program.h"

#include <torch/csrc/jit/frontend/source_range.h>
#include <torch/csrc/jit/ir/scope.h>

#include <llvm/ADT/StringMap.h>
#include <llvm/ADT/StringRef.h>

#include <string>
#include <string_view>

namespace gravure {

/// Source line and module path of `node`, "" where unknown ("model.py:88", "blocks.3.moe").
/// Valid as long as the node keeps its location.
const std::string& sourceOf(const Node* node);
std::string_view moduleOf(const Node* node);

/// describe(node), with its source line where that is known: "%y = aten::mm at model.py:88".
std::string describeWithSource(const Node* node);

/// Gives `node` the location of `from`.
void copyLocation(Node* node, const Node* from);

/// The locations of a program that is being made: each line and each module is made once.
class Locations {
 public:
  /// `line` and `path` must not be empty.
  void setSource(Node* node, llvm::StringRef line);
  void setModule(Node* node, llvm::StringRef path);

 private:
  llvm::StringMap<torch::jit::SourceRange> lines_;
  llvm::StringMap<torch::jit::ScopePtr> modules_;
};

}  // namespace gravure
