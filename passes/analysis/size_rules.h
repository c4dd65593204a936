#pragma once
// How the sizes of one node's results follow from those of its operands: what SizeTerms learns of a node.

#include "ir/core/args.h"
#include "passes/analysis/size_terms.h"

namespace gravure {

/// Borrows the terms and the node. Where a rule is missing or an operand says too little, the answer
/// is nullopt: a size of its own.
class SizeRules {
 public:
  SizeRules(SizeTerms& terms, const Node* node) : terms_(terms), node_(node) {}

  /// Of a node whose only result is an int.
  std::optional<LinearSum> number() const;
  using Sizes = std::vector<LinearSum>;
  /// Sizes of the results, in order; shorter than they are where nothing is known of the rest.
  /// Tells the terms what the operator proves.
  llvm::SmallVector<std::optional<Sizes>, 1> sizes();

 private:
  using Rule = std::optional<Sizes> (SizeRules::*)() const;
  static Rule ruleFor(c10::Symbol kind);

  /// Sizes of the first operand, and one of its dimensions.
  struct Along {
    Sizes sizes;
    std::ptrdiff_t dim = 0;
    LinearSum& size() { return sizes[dim]; }
    const LinearSum& size() const { return sizes[dim]; }
  };

  const Arg* arg(size_t at) const;
  const Value* valueOf(const Arg& arg) const;
  std::optional<Sizes> sizesOfArg(size_t at) const;
  std::optional<LinearSum> numberOf(const Arg& arg) const;
  std::optional<LinearSum> numberAt(size_t at) const;
  std::optional<size_t> dimAt(size_t at, size_t dims, int64_t byDefault) const;
  /// The dimension that argument `at` names, 0 if there is none; the first dimension if `at` is none.
  std::optional<Along> along(std::optional<size_t> at) const;
  std::optional<std::vector<size_t>> dimsAt(size_t at, size_t dims) const;
  std::optional<Sizes> listAt(size_t at) const;

  std::optional<Sizes> ofFirst() const;
  std::optional<Sizes> pointwise() const;
  std::optional<Sizes> mm() const;
  std::optional<Sizes> addmm() const;
  std::optional<Sizes> transpose() const;
  std::optional<Sizes> unsqueeze() const;
  std::optional<Sizes> squeeze() const;
  std::optional<Sizes> select() const;
  std::optional<Sizes> expand() const;
  std::optional<Sizes> firstList() const;
  std::optional<Sizes> secondList() const;
  std::optional<Sizes> slice() const;
  std::optional<Sizes> cat() const;
  std::optional<Sizes> reduce() const;
  std::optional<Sizes> index() const;
  llvm::SmallVector<std::optional<Sizes>, 1> split();

  SizeTerms& terms_;
  const Node* node_;
};

}  // namespace gravure
