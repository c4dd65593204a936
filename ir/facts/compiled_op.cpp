#include "ir/facts/compiled_op.h"

#include "ir/core/args.h"
#include "ir/facts/op_facts.h"
#include "ir/facts/recurrent_operators.h"

#include <llvm/ADT/STLExtras.h>

#include <algorithm>

namespace gravure {
namespace {

bool donates(const Node* node) {
  static const c10::Symbol kind = c10::Symbol::fromQualString("gravure::compiled_donated");
  return node->kind() == kind;
}

bool communicates(const Node* node) {
  static const c10::Symbol kinds[] = {
      c10::Symbol::fromQualString("gravure::compiled_communicating"),
      c10::Symbol::fromQualString("gravure::compiled_communicating_random")};
  return llvm::is_contained(kinds, node->kind());
}

std::string textOf(const std::vector<Arg>* list, size_t index) {
  const bool given = list && index < list->size() && (*list)[index].is<std::string>();
  return given ? (*list)[index].as<std::string>() : "";
}

}  // namespace

int64_t compiledCalls(const Node* node) {
  static const c10::Symbol plain = c10::Symbol::fromQualString("gravure::compiled");
  static const c10::Symbol random = c10::Symbol::fromQualString("gravure::compiled_random");
  const bool compiled =
      node->kind() == plain || node->kind() == random || donates(node) || communicates(node);
  if (!compiled) return 0;
  const auto& args = argsOf(node).args;
  const bool given = args.size() > 1 && args[1].is<int64_t>();
  return given ? std::max<int64_t>(args[1].as<int64_t>(), 1) : 1;
}

llvm::SmallVector<InnerCollective, 4> innerCollectives(const Node* node) {
  llvm::SmallVector<InnerCollective, 4> found;
  if (!communicates(node)) return found;
  constexpr size_t kGroups = 3, kCollectives = 4;
  const auto& args = argsOf(node).args;
  const auto* groups = args.size() > kGroups ? args[kGroups].elements() : nullptr;
  const auto* texts = args.size() > kCollectives ? args[kCollectives].elements() : nullptr;
  const size_t count = std::max(groups ? groups->size() : 0, texts ? texts->size() : 0);
  // One without a group stays: nobody may take the code for one that does not communicate.
  for (size_t i = 0; i < std::max<size_t>(count, 1); ++i)
    found.push_back({textOf(groups, i), textOf(texts, i)});
  return found;
}

llvm::SmallVector<Value*, 2> donatedOperands(const Node* node) {
  const bool takes = donates(node) || isDonatedReserve(node);
  return takes ? writtenInputs(node) : llvm::SmallVector<Value*, 2>();
}

}  // namespace gravure
