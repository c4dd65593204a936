#include "ir/facts/compiled_op.h"

#include "ir/core/args.h"
#include "ir/facts/op_facts.h"

#include <algorithm>

namespace gravure {
namespace {

bool donates(const Node* node) {
  static const c10::Symbol kind = c10::Symbol::fromQualString("gravure::compiled_donated");
  return node->kind() == kind;
}

}  // namespace

int64_t compiledCalls(const Node* node) {
  static const c10::Symbol plain = c10::Symbol::fromQualString("gravure::compiled");
  static const c10::Symbol random = c10::Symbol::fromQualString("gravure::compiled_random");
  if (node->kind() != plain && node->kind() != random && !donates(node)) return 0;
  const auto& args = argsOf(node).args;
  const bool given = args.size() > 1 && args[1].is<int64_t>();
  return given ? std::max<int64_t>(args[1].as<int64_t>(), 1) : 1;
}

llvm::SmallVector<Value*, 2> donatedOperands(const Node* node) {
  return donates(node) ? writtenInputs(node) : llvm::SmallVector<Value*, 2>();
}

}  // namespace gravure
