#include "ir/text/value_table.h"

#include "ir/text/program_text.h"

#include <llvm/Support/xxhash.h>

#include <algorithm>
#include <bit>

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

/// Names that differ in their last character alone are neighbours: what a program defines one after the
/// other, `%add_31`, `%add_32`, lies in one line of the cache.
std::pair<size_t, uint32_t> ValueTable::look(std::string_view name) const {
  constexpr size_t kInLine = 64 / sizeof(Slot);
  const auto last = static_cast<unsigned char>(name.back());
  const uint64_t stem = llvm::xxh3_64bits(llvm::StringRef(name.data(), name.size() - 1));
  const auto hash = static_cast<uint32_t>(stem >> 32) + last;
  const size_t mask = slots_.size() - 1;
  for (size_t at = (stem * kInLine + last % kInLine) & mask;; at = (at + 1) & mask) {
    const Slot& slot = slots_[at];
    const bool known = slot.hash == hash && slot.place && names_[slot.place - 1].name == name;
    if (known || !slot.place) return {at, hash};
  }
}

void ValueTable::makeSlots(size_t names) {
  constexpr size_t kLeast = 64;
  slots_.assign(std::max(kLeast, std::bit_ceil(2 * names)), Slot{});
  for (size_t i = 0; i < names_.size(); ++i) {
    const auto [at, hash] = look(names_[i].name);
    slots_[at] = {hash, static_cast<uint32_t>(i + 1)};
  }
}

ValueTable::Named& ValueTable::add(const Token& name) {
  if (2 * names_.size() >= slots_.size()) makeSlots(2 * names_.size());
  const auto [at, hash] = look(name.text);
  if (slots_[at].place) {
    lexer_.fail(name.offset, "expected a name of its own for each value, found " + quoted(name) +
                                 " a second time");
  }
  names_.push_back(Named{name.text, nullptr, scope_, -1});
  slots_[at] = {hash, static_cast<uint32_t>(names_.size())};
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
  const uint32_t place = slots_[look(name.text).first].place;
  if (!place) lexer_.fail(name.offset, "expected a value defined above, found " + quoted(name));
  const Named& named = names_[place - 1];
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

/// All at once when the nodes are made: what the graph keeps of names then lies close together, and what
/// a name needs of its value can be fetched ahead.
void ValueTable::nameValues() const {
  constexpr size_t kAhead = 8;
  for (size_t i = 0; i < names_.size(); ++i) {
    if (i + kAhead < names_.size()) {
      const Named& ahead = names_[i + kAhead];
      __builtin_prefetch(ahead.value);
      __builtin_prefetch(ahead.name.data());
    }
    const auto& [name, value, scope, folded] = names_[i];
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
