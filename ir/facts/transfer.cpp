#include "ir/facts/transfer.h"

#include "ir/facts/op_facts.h"

#include <llvm/ADT/STLExtras.h>

namespace gravure {
namespace {

/// The result of a copy to the host, or of a wait for one, that `value` is.
const Value* copyBehind(const Value* value) {
  const Node* node = value->node();
  while (node->kind() != c10::prim::Param && factsOf(node).transfer == Transfer::Wait) {
    value = node->input(0);
    node = value->node();
  }
  const bool copied =
      node->kind() != c10::prim::Param && factsOf(node).transfer == Transfer::ToHost;
  return copied ? value : nullptr;
}

bool isForTransfers(const Value* value) {
  return llvm::all_of(value->uses(), [](const torch::jit::Use& use) {
    if (use.user->kind() == c10::prim::Return) return false;
    const Transfer transfer = factsOf(use.user).transfer;
    if (transfer == Transfer::ToDevice) return true;
    if (transfer != Transfer::Wait) return false;
    return use.offset > 0 || isForTransfers(use.user->output());
  });
}

}  // namespace

bool isOnHostForTransfers(const Value* value) {
  const Value* copy = copyBehind(value);
  return copy != nullptr && isForTransfers(copy);
}

}  // namespace gravure
