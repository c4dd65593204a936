#include "passes/analysis/size_terms.h"

#include "ir/facts/value_types.h"
#include "passes/analysis/size_rules.h"

#include <llvm/ADT/STLExtras.h>

#include <utility>

namespace gravure {
namespace {

bool isInt(const Value* value) { return value->type()->kind() == c10::TypeKind::IntType; }

}  // namespace

bool hasOpenSize(const c10::TensorType& type) {
  return type.symbolic_sizes().rank() && !type.symbolic_sizes().isComplete();
}

void SizeTerms::enter(const Entry& entry) {
  for (size_t i = 0; i < entry.inputs.size(); ++i) {
    const Value* input = entry.graph->inputs()[i];
    const bool isSaved = entry.inputs[i].role == InputRole::Saved;
    const SavedTerms saved = isSaved ? saved_.lookup(entry.inputs[i].name) : SavedTerms{};
    if (isInt(input)) {
      numbers_[input] = saved.number ? closed(*saved.number) : newUnknown(false);
    } else if (tensorTypeOf(input)) {
      setSizes(input, saved.sizes ? &*saved.sizes : nullptr);
    }
  }
}

void SizeTerms::learnAll(const Entry& entry) {
  enter(entry);
  for (const Node* node : std::as_const(*entry.graph).nodes()) learn(node);
}

void SizeTerms::leave(const Entry& entry) {
  for (size_t i = 0; i < entry.outputs.size(); ++i) {
    if (entry.outputs[i].role != OutputRole::Saved) continue;
    const Value* output = entry.graph->outputs()[i];
    SavedTerms& saved = saved_[entry.outputs[i].name];
    saved = {};
    if (isInt(output)) {
      saved.number = ofNumber(output);
    } else {
      saved.sizes = sizesOf(output);
    }
  }
  numbers_.clear();
  sizes_.clear();
}

void SizeTerms::learn(const Node* node) {
  SizeRules rules(*this, node);
  for (const Value* output : node->outputs()) {
    if (!isInt(output)) continue;
    auto number = node->outputs().size() == 1 ? rules.number() : std::nullopt;
    // Unknowns are numbered as they are defined.
    numbers_[output] = number ? closed(*number) : newUnknown(false);
  }
  const bool open = llvm::any_of(node->outputs(), [](const Value* output) {
    const auto* type = tensorTypeOf(output);
    return type && hasOpenSize(*type);
  });
  if (!open) return;
  const auto found = rules.sizes();
  for (const Value* output : node->outputs()) {
    const bool ruled = output->offset() < found.size() && found[output->offset()];
    if (tensorTypeOf(output)) setSizes(output, ruled ? &*found[output->offset()] : nullptr);
  }
}

LinearSum SizeTerms::ofNumber(const Value* number) {
  const auto [at, isNew] = numbers_.try_emplace(number);
  if (isNew) at->second = newUnknown(false);
  return at->second;
}

std::optional<SizeTerms::Sizes> SizeTerms::sizesOf(const Value* tensor) {
  const auto* type = tensorTypeOf(tensor);
  if (!type || !type->dim()) return std::nullopt;
  if (hasOpenSize(*type) && !sizes_.count(tensor)) setSizes(tensor, nullptr);
  const auto known = sizes_.find(tensor);
  if (known != sizes_.end()) return known->second;
  Sizes sizes;
  const auto concrete = type->sizes().concrete_sizes();
  for (int64_t size : *concrete) sizes.emplace_back(size);
  return sizes;
}

void SizeTerms::setSizes(const Value* tensor, const Sizes* found) {
  const auto* type = tensorTypeOf(tensor);
  if (!hasOpenSize(*type)) return;
  const size_t dims = *type->dim();
  if (found && found->size() != dims) found = nullptr;
  Sizes sizes;
  for (size_t d = 0; d < dims; ++d) {
    if (const auto size = type->sizes()[d]) {
      sizes.emplace_back(*size);
    } else {
      sizes.push_back(found ? closed((*found)[d]) : newUnknown(true));
    }
  }
  sizes_[tensor] = std::move(sizes);
}

LinearSum SizeTerms::closed(const LinearSum& sum) const {
  const auto constant = constantOf(sum);
  return constant ? LinearSum(*constant) : sum;
}

LinearSum SizeTerms::newUnknown(bool notNegative) {
  notNegative_.push_back(notNegative);
  relationsOf_.emplace_back();
  return LinearSum::ofUnknown(static_cast<int32_t>(notNegative_.size() - 1));
}

void SizeTerms::addRelation(LinearSum zero) {
  if (zero.isConstant()) return;  // nothing new, or a program that always throws here
  for (const auto& [unknown, factor] : zero.terms()) {
    relationsOf_[unknown].push_back(static_cast<int32_t>(relations_.size()));
  }
  relations_.push_back(std::move(zero));
}

llvm::DenseMap<int32_t, Value*> SizeTerms::numbersByUnknown(Graph& graph) {
  llvm::DenseMap<int32_t, Value*> numbers;
  const auto add = [&](Value* value) {
    if (!isInt(value)) return;
    if (const auto unknown = ofNumber(value).unknown()) numbers.try_emplace(*unknown, value);
  };
  for (Value* input : graph.inputs()) add(input);
  for (Node* node : graph.nodes()) {
    for (Value* output : node->outputs()) add(output);
  }
  return numbers;
}

std::optional<int64_t> SizeTerms::constantOf(const LinearSum& sum) const {
  if (sum.isConstant()) return sum.constant();
  const auto [unknown, factor] = sum.terms().front();
  for (int32_t r : relationsOf_[unknown]) {
    const int64_t other = relations_[r].factorOf(unknown);
    if (factor % other != 0) continue;
    const LinearSum rest = sum.plus(relations_[r], -factor / other);
    if (rest.isConstant()) return rest.constant();
  }
  return std::nullopt;
}

bool SizeTerms::hasNoNegativePart(const LinearSum& sum) const {
  return sum.constant() >= 0 && llvm::all_of(sum.terms(), [&](const LinearSum::Term& term) {
           return term.second > 0 && notNegative_[term.first];
         });
}

bool SizeTerms::isNotNegative(const LinearSum& sum) const {
  if (hasNoNegativePart(sum)) return true;
  if (sum.isConstant()) return false;
  return llvm::any_of(relationsOf_[sum.terms().front().first], [&](int32_t r) {
    return hasNoNegativePart(sum.plus(relations_[r])) ||
           hasNoNegativePart(sum.minus(relations_[r]));
  });
}

}  // namespace gravure
