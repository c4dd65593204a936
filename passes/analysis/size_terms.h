#pragma once
// What the sizes of tensors, and the ints of a program, are in terms of each other.
//
// Terms. Unknown: an int that no operator known here computes (a host read's), or a size that follows
//   from none. Relation: a sum that is 0 in every step that gets past the operator which says so:
//   aten::split_with_sizes throws unless its sizes add up to the size that it splits. So the pieces of
//   1024 rows, worked on one by one and put together again, are 1024 rows:
//     %p0, %p1 = aten::split_with_sizes(%x, [%n0, %n1])   relation %n0 + %n1 - 1024
//     %y0 = aten::mm(%p0, %w), …                          rows %n0
//     %y = aten::cat([%y0, %y1])                          rows %n0 + %n1, which is 1024
//   Not negative: sizes of tensors, and what is handed to split_with_sizes.
// Entries follow one another: what forward saves keeps its terms in backward.
// Complexity: linear in nodes plus edges; an int costs as much as it has unknowns.

#include "ir/core/program.h"
#include "ir/facts/op_facts.h"
#include "passes/analysis/linear_sum.h"

#include <llvm/ADT/ArrayRef.h>
#include <llvm/ADT/DenseMap.h>
#include <llvm/ADT/StringMap.h>

#include <optional>
#include <vector>

namespace gravure {

/// True if the type says how many sizes there are, and not what all of them are. Allocates nothing,
/// unlike TensorType::sizes().
bool hasOpenSize(const c10::TensorType& type);

class SizeTerms {
 public:
  /// Called with the entries of a program in order, and between two of them with each node of the
  /// entry's top block, in order.
  void enter(const Entry& entry);
  void learn(const Node* node);
  /// Both at once, of an entry that does not change meanwhile.
  void learnAll(const Entry& entry);
  /// Forgets the entry's values, but for what it saves.
  void leave(const Entry& entry);

  /// Terms of an int that was learnt of, an unknown for all others.
  LinearSum ofNumber(const Value* number);
  /// Sizes of a tensor, one a dimension; nullopt where their number is unknown.
  std::optional<std::vector<LinearSum>> sizesOf(const Value* tensor);

  /// By unknown: the first int of the entry that is this unknown, alone and once. The whole entry must have
  /// been learnt.
  llvm::DenseMap<int32_t, Value*> numbersByUnknown(Graph& graph);

  /// The number that the sum is in every step, by its terms or by a relation.
  std::optional<int64_t> constantOf(const LinearSum& sum) const;
  bool areEqual(const LinearSum& a, const LinearSum& b) const {
    return constantOf(a.minus(b)) == int64_t{0};
  }
  /// True if the sum is proven to be 0 or more.
  bool isNotNegative(const LinearSum& sum) const;

 private:
  friend class SizeRules;
  using Sizes = std::vector<LinearSum>;

  LinearSum newUnknown(bool notNegative);
  /// The sum, or the number that it is in every step.
  LinearSum closed(const LinearSum& sum) const;
  void addRelation(LinearSum zero);
  bool hasNoNegativePart(const LinearSum& sum) const;
  /// Sizes as the type has them, with `found` or unknowns in the gaps.
  void setSizes(const Value* tensor, const Sizes* found);

  std::vector<bool> notNegative_;  // by unknown
  std::vector<LinearSum> relations_;
  std::vector<llvm::SmallVector<int32_t, 1>> relationsOf_;  // by unknown
  llvm::DenseMap<const Value*, LinearSum> numbers_;
  llvm::DenseMap<const Value*, Sizes> sizes_;  // of tensors whose type leaves one open
  struct SavedTerms {
    std::optional<LinearSum> number;
    std::optional<Sizes> sizes;
  };
  llvm::StringMap<SavedTerms> saved_;  // by name
};

}  // namespace gravure
