#include "ir/text/call_target.h"

#include "ir/core/nearest_name.h"
#include "ir/text/text_lexer.h"

#include <llvm/ADT/STLExtras.h>
#include <llvm/ADT/StringRef.h>
#include <torch/csrc/jit/runtime/operator.h>

#include <sstream>

namespace gravure {
namespace {

struct ParsedName {
  std::string qualified;  // aten::add
  std::string overload;
};

/// Splits "aten::add.Tensor"; nullopt unless it reads NAME::NAME[.NAME].
std::optional<ParsedName> parseName(std::string_view text) {
  const size_t colons = text.find("::");
  if (colons == std::string_view::npos || colons == 0) return std::nullopt;
  if (text.find("::", colons + 2) != std::string_view::npos) return std::nullopt;
  if (text.substr(0, colons).find('.') != std::string_view::npos) return std::nullopt;
  const size_t dot = text.find('.', colons);
  if (dot == std::string_view::npos) return ParsedName{std::string(text), ""};
  return ParsedName{std::string(text.substr(0, dot)), std::string(text.substr(dot + 1))};
}

/// The overloads PyTorch knows under `qualified`, "" for the default one.
std::vector<std::string> overloadsOf(const std::string& qualified) {
  std::vector<std::string> overloads;
  for (const auto& op : torch::jit::getAllOperatorsFor(c10::Symbol::fromQualString(qualified))) {
    overloads.push_back(op->schema().overload_name());
  }
  return overloads;
}

std::string overloadList(const std::vector<std::string>& overloads, const std::string& qualified) {
  std::string text;
  for (const std::string& overload : overloads) {
    if (!text.empty()) text += ", ";
    text += qualified;
    if (!overload.empty()) text += "." + overload;
  }
  return text;
}

/// The known operator whose name is nearest to `qualified`, "" if none is near.
std::string nearestOperator(const std::string& qualified) {
  constexpr size_t kLongest = 100;
  if (qualified.size() > kLongest) return "";
  std::vector<std::string> known;
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames())
    known.push_back(name.name);
  llvm::sort(known);  // of several that are as near, the first is named
  return nearestName(qualified, known);
}

std::string unknownOperator(const ParsedName& name) {
  const auto overloads = overloadsOf(name.qualified);
  std::string why = "expected an operator that PyTorch knows, found '" + excerpt(name.qualified);
  if (!name.overload.empty()) why += "." + excerpt(name.overload);
  why += "'; ";
  if (!overloads.empty()) return why + "there are: " + overloadList(overloads, name.qualified);
  const std::string nearest = nearestOperator(name.qualified);
  if (!nearest.empty()) return why + "is it '" + nearest + "'?";
  return why + "load the library that registers it";
}

void describeParameters(CallTarget& target) {
  const c10::FunctionSchema* schema = target.schema();
  if (!schema) {
    target.anyNumber = true;
    return;
  }
  target.parameters = schema->arguments().size();
  target.anyNumber = schema->is_vararg();
  for (size_t i = 0; i < target.parameters; ++i) {
    if (!schema->arguments()[i].default_value()) target.required = i + 1;
  }
}

}  // namespace

const CallTarget* CallTargets::find(std::string_view text, std::string* why) {
  const llvm::StringRef key(text.data(), text.size());
  if (const auto found = known_.find(key); found != known_.end()) return &found->second;
  auto name = parseName(text);
  if (!name) {
    *why = "expected an operator as namespace::name or namespace::name.overload, found '" +
           excerpt(text) + "'";
    return nullptr;
  }
  CallTarget target;
  target.isList = text == "prim::ListConstruct";
  target.isTuple = text == "prim::TupleConstruct";
  target.kind = c10::Symbol::fromQualString(name->qualified);
  if (target.isList || target.isTuple) {
    target.anyNumber = true;
    return &known_.try_emplace(key, std::move(target)).first->second;
  }
  target.facts = findOpFacts(target.kind, name->overload);
  if (!target.facts && name->overload.empty()) {
    // TorchScript writes no overloads: an operator with one schema needs none.
    const auto overloads = overloadsOf(name->qualified);
    if (overloads.size() == 1) {
      name->overload = overloads[0];
      target.facts = findOpFacts(target.kind, name->overload);
    }
  }
  if (!target.facts) {
    *why = unknownOperator(*name);
    return nullptr;
  }
  target.overload = name->overload;
  describeParameters(target);
  return &known_.try_emplace(key, std::move(target)).first->second;
}

std::string otherOverloads(const CallTarget& target) {
  if (!target.overload.empty()) return "";
  const std::string name = target.kind.toQualString();
  auto overloads = overloadsOf(name);
  llvm::erase(overloads, "");
  return overloads.empty() ? "" : "; there is also " + overloadList(overloads, name);
}

std::string schemaText(const c10::FunctionSchema& schema) {
  std::ostringstream text;
  text << schema;
  return text.str();
}

}  // namespace gravure
