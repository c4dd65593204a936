#pragma once
// Collectives of _c10d_functional without communicators, at the worst time that they may take.

#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace gravure::tool {

/// When a collective reads its operands.
enum class CollectiveReads : uint8_t { AtStart, AtWait };

/// A collective between its start and the waits for its results.
struct OpenCollective;

/// While alive, collectives on CPU tensors are those of a group whose ranks hold this one's values (a sum
/// over all is twice the operand; gathered, rank r's part is r + 1 times it, so that parts are told apart),
/// as asynchronous as can be: a result holds poison until it is waited for, and operands are read at once or
/// at the wait, as `reads` says. Operands may not be written, and results neither be written nor read, until
/// the wait: `violations` lists each such access. Groups are made up as the programs name them. One at a
/// time in a process.
class AsyncCollectives {
 public:
  explicit AsyncCollectives(CollectiveReads reads);
  ~AsyncCollectives();
  AsyncCollectives(const AsyncCollectives&) = delete;
  AsyncCollectives& operator=(const AsyncCollectives&) = delete;

  void setReads(CollectiveReads reads) { reads_ = reads; }
  /// Makes c10d know a group of that name, of one rank, unless it does.
  void addGroup(const std::string& name);
  /// What starts from now on is called so in messages.
  void setName(std::string name) { name_ = std::move(name); }

  /// True if `tensor` shares memory with the result of a collective that was not waited for.
  bool isOpenResult(const at::Tensor& tensor) const;
  /// The collective whose result `tensor` is, as setName named it.
  std::string startOf(const at::Tensor& tensor) const;
  /// Notes a violation for each frozen memory that changed since the last look: `by` did it.
  void look(const std::string& by);
  void addViolation(std::string violation) { violations_.push_back(std::move(violation)); }
  const std::vector<std::string>& violations() const { return violations_; }
  /// Forgets what is open, and all violations.
  void forget();

  /// The kernel of every operator of the namespace.
  void call(const c10::OperatorHandle& op, torch::jit::Stack& stack);

 private:
  class Group;
  void start(std::string_view op, torch::jit::Stack& stack);
  void wait(torch::jit::Stack& stack);

  CollectiveReads reads_;
  torch::Library kernels_;
  std::vector<std::unique_ptr<Group>> groups_;
  std::vector<std::unique_ptr<OpenCollective>> open_;
  std::string name_ = "a collective";
  std::vector<std::string> violations_;
};

}  // namespace gravure::tool
