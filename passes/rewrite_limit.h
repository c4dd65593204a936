#pragma once
// How many rewrites passes may still make: to find the one that is wrong by halving.

#include <cstdint>
#include <optional>
#include <string>

namespace torch::jit {
struct Node;
}

namespace gravure {

/// Rewrite: a change that a pass makes in one place and that no fact depends on: a gradient that is
/// accumulated, a size that is closed, joined gradients, a batch, a placement, a merged read, an entry's
/// new order, a partition. The same program, passes and options ask for the same rewrites in the same
/// order, and without the last ones the program still means what it meant.
class RewriteLimit {
 public:
  /// Only the first `most` rewrites are made from here on.
  void set(int64_t most) { most_ = most; }

  /// Asked right before each rewrite: true if it may be made. `at`: a node that it is about, which it
  /// may destroy; nullptr if `what` says it all.
  bool next(const char* pass, const char* what, const torch::jit::Node* at) {
    ++asked_;
    return !most_ || allowed(pass, what, at);
  }
  /// How often next() was asked.
  int64_t asked() const { return asked_; }
  /// The last rewrite that was made under a limit: "join-gradients: sum %g.1 = aten::add"; "" if none was.
  const std::string& last() const { return last_; }

 private:
  bool allowed(const char* pass, const char* what, const torch::jit::Node* at);

  std::optional<int64_t> most_;
  int64_t asked_ = 0;
  std::string last_;
};

}  // namespace gravure
