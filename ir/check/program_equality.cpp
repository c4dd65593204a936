#include "ir/check/program_equality.h"

#include "ir/core/args.h"
#include "ir/core/attribute_constant.h"
#include "ir/core/cudagraph_ops.h"
#include "ir/core/location.h"
#include "ir/text/constant_text.h"
#include "ir/text/program_text.h"
#include "ir/text/type_printer.h"

#include <llvm/ADT/DenseMap.h>

#include <algorithm>

namespace gravure {
namespace {

class Comparison {
 public:
  /// True if equal; else why() names the first difference.
  bool sameEntries(const Entry& a, const Entry& b);
  const std::string& why() const { return why_; }

 private:
  bool sameStatements(const Block* a, const Block* b);
  bool sameNode(const Node* a, const Node* b);
  bool sameBlock(const Block* a, const Block* b, const Node* node);
  bool sameOperator(const Node* a, const Node* b);
  bool sameAttributes(const Node* a, const Node* b);
  bool sameArguments(const Node* a, const Node* b);
  bool sameArg(const Node* a, const Node* b, const Arg& x, const Arg& y);
  bool sameRng(const Node* a, const Node* b);
  bool sameDefinitions(c10::ArrayRef<const Value*> a, c10::ArrayRef<const Value*> b,
                       const std::string& where);
  bool sameType(const Value* a, const Value* b);
  bool sameUse(const Value* a, const Value* b) const;
  bool differ(std::string why);
  bool differAt(const Node* a, const Node* b);

  std::string why_;
  llvm::DenseMap<const Value*, const Value*> valueOf_;  // of a, in b
  llvm::DenseMap<std::pair<const c10::Type*, const c10::Type*>, bool> sameTypes_;
};

bool Comparison::differ(std::string why) {
  why_ = std::move(why);
  return false;
}

bool Comparison::differAt(const Node* a, const Node* b) {
  return differ("'" + nodeText(a) + "' is not '" + nodeText(b) + "'");
}

bool Comparison::sameEntries(const Entry& a, const Entry& b) {
  if (a.name != b.name) return differ("entry '" + a.name + "' is not '" + b.name + "'");
  const std::string where = "entry '" + a.name + "': ";
  const Graph &graphA = *a.graph, &graphB = *b.graph;
  if (!sameDefinitions(graphA.inputs(), graphB.inputs(), where + "inputs")) return false;
  if (a.inputs != b.inputs) return differ(where + "the roles of the inputs differ");
  if (!sameStatements(graphA.block(), graphB.block())) {
    why_ = where + why_;
    return false;
  }
  const auto outputsA = graphA.outputs(), outputsB = graphB.outputs();
  const bool same = std::equal(outputsA.begin(), outputsA.end(), outputsB.begin(), outputsB.end(),
                               [&](const Value* x, const Value* y) { return sameUse(x, y); });
  if (!same) return differ(where + "it returns other values");
  if (a.outputs != b.outputs) return differ(where + "the roles of the outputs differ");
  return true;
}

bool Comparison::sameDefinitions(c10::ArrayRef<const Value*> a, c10::ArrayRef<const Value*> b,
                                 const std::string& where) {
  if (a.size() != b.size()) {
    return differ(where + ": " + std::to_string(a.size()) + " values are not " +
                  std::to_string(b.size()));
  }
  for (size_t i = 0; i < a.size(); ++i) {
    const bool named = a[i]->hasDebugName();
    if (named != b[i]->hasDebugName() || (named && a[i]->debugName() != b[i]->debugName())) {
      return differ(where + ": '%" + a[i]->debugName() + "' is not '%" + b[i]->debugName() + "'");
    }
    if (!sameType(a[i], b[i])) {
      return differ(where + ": '%" + a[i]->debugName() + "' is " + typeText(*a[i]->type()) +
                    ", not " + typeText(*b[i]->type()));
    }
    valueOf_[a[i]] = b[i];
  }
  return true;
}

bool Comparison::sameType(const Value* a, const Value* b) {
  const c10::Type *x = a->type().get(), *y = b->type().get();
  if (x == y) return true;
  const auto [at, isNew] = sameTypes_.try_emplace({x, y});
  // By their text: two types that print the same differ in nothing a program knows of.
  if (isNew) at->second = typeText(*x) == typeText(*y);
  return at->second;
}

bool Comparison::sameUse(const Value* a, const Value* b) const {
  const auto at = valueOf_.find(a);
  return at != valueOf_.end() && at->second == b;
}

bool Comparison::sameStatements(const Block* a, const Block* b) {
  const auto nodesA = a->nodes(), nodesB = b->nodes();
  auto atB = nodesB.begin();
  for (const Node* node : nodesA) {
    if (atB == nodesB.end()) return differ("'" + nodeText(node) + "' is missing in the second");
    if (!sameNode(node, *atB)) return false;
    ++atB;
  }
  if (atB != nodesB.end()) return differ("'" + nodeText(*atB) + "' is missing in the first");
  return true;
}

bool Comparison::sameNode(const Node* a, const Node* b) {
  if (!sameOperator(a, b) || !sameArguments(a, b) || !sameRng(a, b)) return differAt(a, b);
  if (!sameAttributes(a, b)) return differAt(a, b);
  if (a->blocks().size() != b->blocks().size()) {
    return differ("'" + nodeText(a) + "' has " + std::to_string(a->blocks().size()) +
                  " blocks, not " + std::to_string(b->blocks().size()));
  }
  for (size_t i = 0; i < a->blocks().size(); ++i) {
    if (!sameBlock(a->blocks()[i], b->blocks()[i], a)) return false;
  }
  return sameDefinitions(a->outputs(), b->outputs(),
                         "outputs of '" + std::string(a->kind().toQualString()) + "'");
}

bool Comparison::sameBlock(const Block* a, const Block* b, const Node* node) {
  if (!sameDefinitions(a->inputs(), b->inputs(), "a block of '" + nodeText(node) + "'")) {
    return false;
  }
  if (!sameStatements(a, b)) return false;
  const auto x = a->outputs(), y = b->outputs();
  const bool same = std::equal(x.begin(), x.end(), y.begin(), y.end(),
                               [&](const Value* v, const Value* w) { return sameUse(v, w); });
  if (!same) return differ("a block of '" + nodeText(node) + "' ends with other values");
  return true;
}

bool Comparison::sameOperator(const Node* a, const Node* b) {
  return a->kind() == b->kind() && overloadOf(a) == overloadOf(b) && sourceOf(a) == sourceOf(b) &&
         moduleOf(a) == moduleOf(b);
}

/// Absent arguments at the end may be left out; input numbers may differ if the values agree.
bool Comparison::sameArguments(const Node* a, const Node* b) {
  static const Arg absent;
  const auto &x = argsOf(a).args, &y = argsOf(b).args;
  for (size_t i = 0; i < std::max(x.size(), y.size()); ++i) {
    if (!sameArg(a, b, i < x.size() ? x[i] : absent, i < y.size() ? y[i] : absent)) return false;
  }
  return true;
}

bool Comparison::sameArg(const Node* a, const Node* b, const Arg& x, const Arg& y) {
  if (x.value.index() != y.value.index()) return false;
  if (x.is<InputArg>()) {
    const uint32_t i = x.as<InputArg>().index, j = y.as<InputArg>().index;
    return i < a->inputs().size() && j < b->inputs().size() && sameUse(a->input(i), b->input(j));
  }
  const auto *members = x.elements(), *others = y.elements();
  if (!members) return x == y;
  return std::equal(members->begin(), members->end(), others->begin(), others->end(),
                    [&](const Arg& m, const Arg& o) { return sameArg(a, b, m, o); });
}

bool Comparison::sameRng(const Node* a, const Node* b) {
  const Value *x = rngStateOf(a), *y = rngStateOf(b);
  if (!x || !y) return !x && !y;
  return sameUse(x, y);
}

/// In any order.
bool Comparison::sameAttributes(const Node* a, const Node* b) {
  const auto visible = [](const Node* node) {
    auto names = node->attributeNames();
    names.erase(std::remove_if(names.begin(), names.end(), attr::isInternal), names.end());
    return names;
  };
  const auto names = visible(a);
  if (names.size() != visible(b).size()) return false;
  return std::all_of(names.begin(), names.end(), [&](c10::Symbol name) {
    return b->hasAttribute(name) && attributeConstant(a, name) == attributeConstant(b, name);
  });
}

}  // namespace

bool equalPrograms(const Program& a, const Program& b, std::string* why) {
  std::string difference;
  if (a.entries.size() != b.entries.size()) {
    difference =
        std::to_string(a.entries.size()) + " entries are not " + std::to_string(b.entries.size());
  }
  for (size_t i = 0; i < a.entries.size() && difference.empty(); ++i) {
    Comparison comparison;
    if (!comparison.sameEntries(a.entries[i], b.entries[i])) difference = comparison.why();
  }
  if (why) *why = difference;
  return difference.empty();
}

}  // namespace gravure
