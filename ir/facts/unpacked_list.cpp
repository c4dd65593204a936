#include "ir/facts/unpacked_list.h"

namespace gravure {
namespace {

bool isList(const c10::TypePtr& type) { return type->kind() == c10::TypeKind::ListType; }

}  // namespace

std::optional<UnpackedList> unpackedList(const Node* node, const c10::FunctionSchema& schema) {
  const auto& returns = schema.returns();
  const auto outputs = node->outputs();
  std::optional<size_t> at;
  for (size_t i = 0; i < returns.size(); ++i) {
    if (!isList(returns[i].type())) continue;
    if (at) return std::nullopt;  // where one ends and the other begins, nothing says
    at = i;
  }
  if (!at || outputs.empty() || outputs.size() + 1 < returns.size()) return std::nullopt;
  if (outputs.size() == returns.size() && isList(outputs[*at]->type())) return std::nullopt;
  return UnpackedList{*at, outputs.size() + 1 - returns.size()};
}

size_t returnOf(size_t output, const std::optional<UnpackedList>& unpacked) {
  if (!unpacked || output < unpacked->at) return output;
  const size_t end = unpacked->at + unpacked->members;
  return output < end ? unpacked->at : output - unpacked->members + 1;
}

}  // namespace gravure
