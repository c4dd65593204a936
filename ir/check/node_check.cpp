#include "ir/check/node_check.h"

#include "ir/check/call_check.h"
#include "ir/core/args.h"
#include "ir/core/attribute_constant.h"
#include "ir/core/counted.h"
#include "ir/core/cudagraph_ops.h"
#include "ir/facts/value_types.h"
#include "ir/text/constant_text.h"
#include "ir/text/program_text.h"
#include "ir/text/type_printer.h"
#include "ir/text/type_reader.h"

#include <llvm/ADT/STLExtras.h>

namespace gravure {
namespace {

std::string checkHost(const Arg& value) {
  if (!value.is<std::string>() || !reasonFromName(value.as<std::string>())) {
    return "the attribute 'host' is not the name of a reason";
  }
  return "";
}

std::string checkNumber(const char* name, const Arg& value) {
  if (value.is<int64_t>() && value.as<int64_t>() >= 0) return "";
  return "the attribute '" + std::string(name) + "' is not an int from 0 up";
}

std::string checkTags(const Node* node, const Arg& value) {
  const auto* tags = value.elements();
  if (!tags) return "the attribute 'tags' is not a list";
  if (tags->size() != node->inputs().size()) {
    return "there are " + counted(tags->size(), "tag") + " for " +
           counted(node->inputs().size(), "operand");
  }
  for (const Arg& tag : *tags) {
    if (!tag.is<std::string>() || !parseTag(tag.as<std::string>())) {
      return "the attribute 'tags' holds something else than 'static: …', 'staged: …', 'rng: …' "
             "or 'guarded: …'";
    }
  }
  return "";
}

/// `each`: what has one offset, "output" or "operand".
std::string checkOffsets(c10::Symbol name, const char* each, size_t count, const Arg& value) {
  const std::string attribute = "the attribute '" + std::string(name.toUnqualString()) + "'";
  const auto* offsets = value.elements();
  if (!offsets || offsets->size() != count) {
    return attribute + " is not a list of one offset an " + each;
  }
  for (const Arg& offset : *offsets) {
    if (!offset.is<int64_t>() || offset.as<int64_t>() < -1) {
      return attribute + " holds something else than offsets and -1";
    }
  }
  return "";
}

std::string checkPartition(const Node* node) {
  if (node->blocks().size() != 1) {
    return "it has " + counted(node->blocks().size(), "block") + ", expected 1";
  }
  if (!node->hasAttribute(attr::index)) return "it has no attribute 'index'";
  const Block* block = node->blocks()[0];
  if (block->inputs().size() != node->inputs().size()) {
    return "its block has " + counted(block->inputs().size(), "parameter") + " for " +
           counted(node->inputs().size(), "operand");
  }
  if (block->outputs().size() != node->outputs().size()) {
    return "its block ends with " + counted(block->outputs().size(), "value") + " for " +
           counted(node->outputs().size(), "output");
  }
  for (size_t i = 0; i < node->inputs().size(); ++i) {
    const c10::Type& operand = *node->input(i)->type();
    const c10::Type& parameter = *block->inputs()[i]->type();
    if (&operand == &parameter || typeText(operand) == typeText(parameter)) continue;
    return "its block's parameter %" + block->inputs()[i]->debugName() + " is " +
           typeText(parameter) + ", but the operand is " + typeText(operand);
  }
  return "";
}

std::string checkOneToOne(const Node* node) {
  if (node->inputs().size() == node->outputs().size()) return "";
  return "it has " + counted(node->outputs().size(), "output") + " for " +
         counted(node->inputs().size(), "operand");
}

std::string checkReadHost(const Node* node) {
  if (node->inputs().size() != 1 || !tensorTypeOf(node->input(0))) {
    return "it reads one tensor, not its " + counted(node->inputs().size(), "operand");
  }
  const bool numbers = llvm::all_of(node->outputs(), [](const Value* output) {
    const auto kind = output->type()->kind();
    return kind == c10::TypeKind::IntType || kind == c10::TypeKind::FloatType ||
           kind == c10::TypeKind::BoolType;
  });
  return numbers ? "" : "its outputs are not all int, float or bool";
}

std::string checkSaveRngState(const Node* node) {
  const auto& args = argsOf(node).args;
  const bool named = args.size() == 1 && args[0].is<std::string>();
  if (!named || !deviceFromText(args[0].as<std::string>())) {
    return "its argument is not a device's name";
  }
  if (node->outputs().size() != 1 || !tensorTypeOf(node->output(0)))
    return "its output is no tensor";
  return "";
}

std::string checkIf(const Node* node) {
  if (node->inputs().size() != 1 || node->input(0)->type()->kind() != c10::TypeKind::BoolType) {
    return "its argument is not one bool";
  }
  if (node->blocks().size() != 2) {
    return "it has " + counted(node->blocks().size(), "block") + ", expected 2";
  }
  for (const Block* block : node->blocks()) {
    if (!block->inputs().empty()) return "its blocks cannot have parameters";
    if (block->outputs().size() != node->outputs().size()) {
      return "its block ends with " + counted(block->outputs().size(), "value") + " for " +
             counted(node->outputs().size(), "output");
    }
  }
  return "";
}

std::string checkConstant(const Node* node) {
  static const c10::Symbol value = c10::Symbol::attr("value");
  if (!node->inputs().empty()) return "a constant has no arguments";
  if (node->outputs().size() != 1) return "a constant has one output";
  if (!node->hasAttribute(value)) return "it has no attribute 'value'";
  const Arg constant = attributeConstant(node, value);
  if (constantFits(constant, *node->output(0)->type())) return "";
  std::string text;
  appendConstant(text, constant);
  return "the constant " + text + " is not of type " + typeText(*node->output(0)->type());
}

}  // namespace

std::string checkAttributes(const Node* node) {
  const bool ours = node->kind().ns() == c10::Symbol::fromQualString("namespaces::cudagraph");
  for (c10::Symbol name : node->attributeNames()) {
    if (attr::isInternal(name)) continue;
    const Arg value = attributeConstant(node, name);
    std::string wrong;
    if (name == attr::host) {
      wrong = checkHost(value);
    } else if (name == attr::fate || name == attr::index) {
      wrong = checkNumber(name.toUnqualString(), value);
    } else if (name == attr::tags) {
      wrong = checkTags(node, value);
    } else if (name == attr::arena) {
      wrong = checkOffsets(name, "output", node->outputs().size(), value);
    } else if (name == attr::staging && node->kind() == cg::partition) {
      wrong = checkOffsets(name, "operand", node->inputs().size(), value);
    } else if (ours) {
      wrong = "it has an unknown attribute '" + std::string(name.toUnqualString()) + "'";
    }
    if (!wrong.empty()) return wrong;
  }
  return "";
}

std::string checkStructure(const Node* node) {
  if (isPartition(node)) return checkPartition(node);
  if (node->kind() == c10::prim::If) return checkIf(node);
  if (!node->blocks().empty()) return "it cannot have blocks";
  if (node->kind() == cg::stage || node->kind() == cg::own) return checkOneToOne(node);
  if (node->kind() == cg::readHost) return checkReadHost(node);
  if (node->kind() == cg::saveRngState) return checkSaveRngState(node);
  if (node->kind() == c10::prim::Constant) return checkConstant(node);
  return "";
}

}  // namespace gravure
