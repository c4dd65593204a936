#include "ir/text/value_table.h"

#include "ir/text/program_text.h"

#include <algorithm>

namespace gravure {
namespace {

std::string quoted(const Token& name) { return "'%" + excerpt(name.text) + "'"; }

/// Weight of one copy of `arg`; `depth` grows to that of its deepest member.
size_t weigh(const Arg& arg, int level, int& depth) {
  depth = std::max(depth, level);
  size_t weight = 1;
  if (arg.is<std::string>()) weight += arg.as<std::string>().size() / 32;
  if (const auto* members = arg.elements()) {
    for (const Arg& member : *members) weight += weigh(member, level + 1, depth);
  }
  return weight;
}

}  // namespace

ValueTable::Named& ValueTable::add(const Token& name) {
  const auto index = static_cast<uint32_t>(names_.size());
  if (!index_.try_emplace(llvm::StringRef(name.text), index).second) {
    lexer_.fail(name.offset, "expected a name of its own for each value, found " + quoted(name) +
                                 " a second time");
  }
  names_.push_back(Named{name.text, nullptr, scope_, -1});
  return names_.back();
}

void ValueTable::define(const Token& name, Value* value) { add(name).value = value; }

void ValueTable::defineFolded(const Token& name, FoldedConstant folded) {
  Named& named = add(name);
  named.folded = static_cast<int32_t>(folded_.size());
  if (folded.node) named.value = folded.node->output(0);
  folded.weight = weigh(folded.arg, 0, folded.depth);
  folded_.push_back(std::move(folded));
}

ValueTable::Found ValueTable::find(const Token& name) {
  const auto at = index_.find(llvm::StringRef(name.text));
  if (at == index_.end()) {
    lexer_.fail(name.offset, "expected a value defined above, found " + quoted(name));
  }
  const Named& named = names_[at->second];
  if (!open_[named.scope]) {
    lexer_.fail(name.offset, "expected a value defined above, found " + quoted(name) +
                                 ", which belongs to a block that has ended");
  }
  if (named.scope < barrier_) {
    lexer_.fail(name.offset, "expected a parameter of this block or a value defined in it, found " +
                                 quoted(name) + " from outside; pass it as an operand");
  }
  return {named.value, named.folded < 0 ? nullptr : &folded_[named.folded]};
}

Value* ValueTable::findValue(const Token& name) {
  const Found found = find(name);
  if (!found.value) {
    lexer_.fail(name.offset, "expected a value, found " + quoted(name) +
                                 ", a list or tuple; it can only be an argument");
  }
  return found.value;
}

ValueTable::Scope ValueTable::enter(bool isolated) {
  const Scope scope{static_cast<uint32_t>(open_.size()), barrier_};
  open_.push_back(true);
  if (isolated) barrier_ = scope.id;
  outer_.push_back(scope_);
  scope_ = scope.id;
  return scope;
}

void ValueTable::leave(const Scope& scope) {
  open_[scope.id] = false;
  barrier_ = scope.outerBarrier;
  scope_ = outer_.back();
  outer_.pop_back();
}

/// All at once when the nodes are made: what the graph keeps of names then lies close together.
void ValueTable::nameValues() const {
  for (const auto& [name, value, scope, folded] : names_) {
    const bool anonymous = name.find_first_not_of("0123456789") == std::string_view::npos;
    if (value && !anonymous) value->setDebugName(std::string(name));
  }
}

void ValueTable::dropFoldedNodes() {
  // Backwards: of two, the later one may be the only user of the earlier one.
  for (auto folded = folded_.rbegin(); folded != folded_.rend(); ++folded) {
    if (folded->node && folded->used && !folded->node->hasUses()) folded->node->destroy();
  }
}

}  // namespace gravure
