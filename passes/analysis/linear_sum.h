#pragma once
// An integer as a sum of numbers that only a run knows: 3 + %n0 + 2 * %n1.

#include <llvm/ADT/SmallVector.h>

#include <cstdint>
#include <optional>
#include <utility>

namespace gravure {

/// Unknown: an integer known only at run time, by its index. Invariant: terms ascend by unknown, and
/// no factor is 0; so equal sums are equal member by member.
class LinearSum {
 public:
  using Term = std::pair<int32_t, int64_t>;  // unknown, factor

  LinearSum() = default;
  explicit LinearSum(int64_t constant) : constant_(constant) {}
  static LinearSum ofUnknown(int32_t unknown) {
    LinearSum sum;
    sum.terms_.push_back({unknown, 1});
    return sum;
  }

  int64_t constant() const { return constant_; }
  const llvm::SmallVector<Term, 2>& terms() const { return terms_; }
  bool isConstant() const { return terms_.empty(); }
  /// The unknown that this sum is, alone and once; nullopt for all else.
  std::optional<int32_t> unknown() const {
    const bool alone = constant_ == 0 && terms_.size() == 1 && terms_[0].second == 1;
    return alone ? std::optional(terms_[0].first) : std::nullopt;
  }
  int64_t factorOf(int32_t unknown) const {
    for (const auto& [u, factor] : terms_) {
      if (u == unknown) return factor;
    }
    return 0;
  }

  /// this + factor * other.
  LinearSum plus(const LinearSum& other, int64_t factor = 1) const {
    LinearSum sum(constant_ + factor * other.constant_);
    const auto push = [&](int32_t unknown, int64_t f) {
      if (f != 0) sum.terms_.push_back({unknown, f});
    };
    auto a = terms_.begin(), b = other.terms_.begin();
    while (a != terms_.end() || b != other.terms_.end()) {
      if (b == other.terms_.end() || (a != terms_.end() && a->first < b->first)) {
        push(a->first, a->second);
        ++a;
      } else if (a == terms_.end() || b->first < a->first) {
        push(b->first, factor * b->second);
        ++b;
      } else {
        push(a->first, a->second + factor * b->second);
        ++a, ++b;
      }
    }
    return sum;
  }
  LinearSum minus(const LinearSum& other) const { return plus(other, -1); }

  bool operator==(const LinearSum&) const = default;

 private:
  int64_t constant_ = 0;
  llvm::SmallVector<Term, 2> terms_;
};

}  // namespace gravure
