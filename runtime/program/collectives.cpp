#include "runtime/program/collectives.h"

#include "ir/core/args.h"
#include "ir/facts/compiled_op.h"
#include "ir/facts/op_facts.h"
#include "ir/text/constant_text.h"

#include <llvm/ADT/STLExtras.h>

#include <algorithm>

namespace gravure {
namespace {

/// Adds a group that is new.
int32_t indexAmong(std::vector<std::string>& groups, const std::string& group) {
  const auto at = std::find(groups.begin(), groups.end(), group);
  const auto index = static_cast<int32_t>(at - groups.begin());
  if (at == groups.end()) groups.push_back(group);
  return index;
}

/// Ranks give and take different amounts, which the operator itself tells them.
bool hasSplits(const Node* node) {
  return std::string_view(node->kind().toUnqualString()).starts_with("all_to_all");
}

std::string shapeText(const Value* value, bool sizes) {
  const auto* type = value->type()->castRaw<c10::TensorType>();
  if (!type) return value->type()->str();
  std::string text = type->scalarType() ? c10::toString(*type->scalarType()) : "Tensor";
  if (!sizes || !type->dim()) return text;
  text += "[";
  for (size_t i = 0; i < *type->dim(); ++i) {
    const auto size = type->sizes()[i];
    text += (i ? ", " : "") + (size ? std::to_string(*size) : std::string("*"));
  }
  return text + "]";
}

/// Operands by shape, constants by value; the group's name is each rank's own.
void appendArg(std::string& text, const Arg& arg, const Node* node, bool sizes) {
  if (arg.is<InputArg>()) {
    text += shapeText(node->input(arg.as<InputArg>().index), sizes);
  } else if (const auto* members = arg.elements()) {
    text += "[";
    for (size_t i = 0; i < members->size(); ++i) {
      if (i) text += ", ";
      appendArg(text, (*members)[i], node, sizes);
    }
    text += "]";
  } else if (!arg.is<c10::Device>()) {
    appendConstant(text, arg);
  }
}

std::string groupNameOf(const Node* node) {
  const OpFacts& facts = factsOf(node);
  if (!facts.schema) return "";
  const auto at = facts.schema->argumentIndexWithName("group_name");
  const ArgList& list = argsOf(node);
  if (!at || *at >= static_cast<int>(list.args.size())) return "";
  return list.args[*at].is<std::string>() ? list.args[*at].as<std::string>() : "";
}

std::string inGroup(int32_t group) { return " in group " + std::to_string(group); }

std::string lineOf(const Node* node, const std::string& where, int32_t group) {
  const OpFacts& facts = factsOf(node);
  const bool splits = hasSplits(node);
  std::string text = where + ": " + node->kind().toQualString() + "(";
  const ArgList& list = argsOf(node);
  for (size_t i = 0; i < list.args.size(); ++i) {
    const std::string name = facts.schema && i < facts.schema->arguments().size()
                                 ? facts.schema->arguments()[i].name()
                                 : "";
    if (name == "group_name" || (splits && name.find("split") != std::string::npos)) continue;
    if (text.back() != '(') text += ", ";
    appendArg(text, list.args[i], node, !splits);
  }
  return text + ")" + inGroup(group);
}

}  // namespace

llvm::SmallVector<std::string, 1> groupNamesOf(const Node* node) {
  llvm::SmallVector<std::string, 1> names;
  for (InnerCollective& inner : innerCollectives(node)) {
    if (!llvm::is_contained(names, inner.group)) names.push_back(std::move(inner.group));
  }
  if (names.empty()) names.push_back(groupNameOf(node));
  return names;
}

ProgramCollectives findCollectives(std::vector<EntryCode>& codes) {
  ProgramCollectives found;
  const auto add = [&](const Node* node, const std::string& where, Launch* launch) {
    if (!factsOf(node).collective) return;
    const auto names = groupNamesOf(node);
    for (const std::string& name : names) (void)indexAmong(found.groups, name);
    const auto inside = innerCollectives(node);
    for (const InnerCollective& inner : inside) {
      const int32_t group = indexAmong(found.groups, inner.group);
      found.lines.push_back(where + ", compiled: " + inner.text + inGroup(group));
    }
    if (inside.empty()) {
      found.lines.push_back(lineOf(node, where, indexAmong(found.groups, names.front())));
    }
    if (!launch) return;
    found.captured = true;
    auto& used = launch->groups;
    for (const std::string& name : names) {
      if (name.empty() && !found.unnamed) found.unnamed = node;
      const int32_t group = indexAmong(found.groups, name);
      if (!llvm::is_contained(used, group)) used.push_back(group);
    }
  };
  for (EntryCode& code : codes) {
    const std::string entry = code.entry->name;
    int64_t partitions = 0;
    for (const Instruction& instruction : code.instructions) {
      if (instruction.kind == Instruction::Kind::Call) {
        add(code.calls[instruction.index].node, entry + ", on the host", nullptr);
      }
      if (instruction.kind != Instruction::Kind::Launch) continue;
      Launch& launch = code.launches[instruction.index];
      const std::string where = entry + ", partition " + std::to_string(partitions);
      for (const Call& call : launch.calls) add(call.node, where, &launch);
      partitions += !launch.groups.empty();
    }
  }
  return found;
}

}  // namespace gravure
