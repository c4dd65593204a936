#pragma once
// Which results of an entry count writes together, as eager's tensors of one memory do.
//
// Terms. Version: how often a tensor was written in place. Tensors of one memory have one count in eager,
//   so that autograd notices a write into any of them. Here views are made below autograd, and a
//   replay's results are copies of what is saved beside them: each would have a count of its own.
// Rule. Values that the entry makes one of another through schemas that say so (views, in-place results)
//   count together with the input that they come of, if any, and with each other. Operators that hand
//   out their operand's memory without saying so (aten::_unsafe_view) begin a count of their own, as in
//   eager.
// Gradients count for themselves: autograd adds to them as it likes. What autograd does not see, it does
//   not see here: a write through `.data`.

#include "ir/core/program.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <cstdint>
#include <vector>

namespace gravure {

class SharedVersions {
 public:
  SharedVersions() = default;
  /// Of `entry` as it was given, before any pass. Linear in nodes plus edges.
  explicit SharedVersions(const Entry& entry);
  /// `rewritten`: the entry behind the passes. Gradients may be gone there; all other results stay, in
  /// their order.
  void follow(const Entry& rewritten);

  /// True where no result shares anything.
  bool empty() const { return groups_.empty(); }
  /// Before a run of the entry with `inputs`: the tensors whose counts its results may go on with.
  std::vector<at::Tensor> counters(const std::vector<c10::IValue>& inputs) const;
  /// After it, before anybody notes a version: `results` are one an output, `counters` from above.
  void share(const std::vector<at::Tensor>& counters,
             const std::vector<c10::IValue>& results) const;

 private:
  struct Group {
    int64_t input = -1;
    std::vector<int64_t> outputs;  // the caller's first, then those that are saved
  };
  std::vector<Group> groups_;
  std::vector<int64_t> kept_;  // outputs other than gradients, in order
};

}  // namespace gravure
