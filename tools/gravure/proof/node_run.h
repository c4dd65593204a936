#pragma once
// A program node by node, at whatever stage of the pipeline it is, on the CPU: what it means, without a
// word of any analysis.

#include "ir/core/program.h"
#include "runtime/device/device_map.h"
#include "runtime/program/instruction.h"
#include "tools/gravure/proof/async_collectives.h"

#include <llvm/ADT/DenseMap.h>

#include <map>
#include <string>
#include <vector>

namespace gravure::tool {

/// True if the memory of two tensors overlaps, or is one storage.
bool shareMemory(const at::Tensor& a, const at::Tensor& b);
/// Fills a tensor with bytes of ones: nan, -1, True.
void poison(const at::Tensor& tensor);
/// Calls visit(tensor) for each defined tensor in a value, members of lists and tuples included.
void forEachTensor(const c10::IValue& value, const std::function<void(const at::Tensor&)>& visit);

/// Runs each node where it stands. What a pass wrote down is taken at its word:
/// - an operand that a partition takes as staged is a copy; cudagraph::stage and own copy, too;
/// - one that it takes as static is where it was in the first step (a violation, where it is not);
/// - where a value is planned in the arena over another one, that other one is poisoned;
/// and what an operator leaves open is poison: new memory (aten::empty), results of collectives until
/// they are waited for, copies to the CPU that are not waited for.
class NodeRun {
 public:
  /// `collectives`: nullptr where the program has none. `lateCopies`: a copy to the CPU with
  /// non_blocking=True arrives when something waits for the device.
  NodeRun(Program program, AsyncCollectives* collectives, bool lateCopies);

  const Program& program() const { return program_; }
  /// Forgets what the step before left, but for the addresses that partitions saw.
  void beginStep();
  /// One value an output. Throws c10::Error where a node does.
  std::vector<c10::IValue> run(const Entry& entry, const std::vector<c10::IValue>& inputs);

  /// Of this step: what may not be, one sentence each.
  const std::vector<std::string>& violations() const { return violations_; }
  /// Of this step: values that are not what their type says, by name, with both.
  const std::map<std::string, std::string>& mistyped() const { return mistyped_; }
  /// Of this step: effects on the host, in order, with what they were given; and collectives.
  const std::vector<std::string>& effects() const { return effects_; }
  const std::vector<std::string>& collectiveCalls() const { return collectiveCalls_; }

 private:
  struct Placed {
    int64_t offset, bytes;
    at::Tensor tensor;
  };
  struct LateCopy {
    at::Tensor copy, data;
  };
  Slot slotOf(const Value* value);
  void define(const Value* value, c10::IValue result);
  const c10::IValue& valueOf(const Value* value);
  void runBlock(const Block* block);
  void runNode(const Node* node);
  void runBranch(const Node* node);
  void runPartition(const Node* node);
  void runCopies(const Node* node);
  void runCall(const Node* node);
  c10::IValue operandOf(const Node* partition, size_t index);
  void checkAddress(const Node* partition, size_t index, const at::Tensor& operand);
  void noteEffect(const Node* node);
  void placeOutputs(const Node* node, const std::vector<at::Tensor>& operands);
  void place(int64_t offset, const Value* value, const at::Tensor& tensor);
  bool waitsForDevice(const Node* node) const;
  void deliverCopies();
  bool isLateCopy(const Node* node) const;
  void checkType(const Value* value);

  Program program_;
  AsyncCollectives* collectives_;
  const bool lateCopies_;
  DeviceMap devices_;
  llvm::DenseMap<const Value*, Slot> slots_;
  llvm::DenseMap<const Node*, std::unique_ptr<Call>> calls_;
  Frame frame_;
  std::vector<bool> defined_;
  torch::jit::Stack stack_;
  std::vector<at::Tensor> inputs_;  // of the caller's, in this step
  std::map<std::pair<const Node*, size_t>, const void*> addresses_;
  std::map<const Value*, at::Tensor> staged_;
  std::vector<Placed> placed_;
  std::vector<LateCopy> late_;
  std::vector<std::string> violations_, effects_, collectiveCalls_;
  std::map<std::string, std::string> mistyped_;
};

}  // namespace gravure::tool
