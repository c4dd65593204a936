#include "passes/emit_runtime_calls.h"

#include "ir/core/args.h"
#include "ir/core/attributes.h"
#include "ir/core/cudagraph_ops.h"
#include "ir/core/fresh_name.h"
#include "ir/core/location.h"
#include "ir/facts/op_facts.h"
#include "ir/facts/value_types.h"
#include "passes/plan_memory.h"

#include <llvm/ADT/DenseMap.h>
#include <llvm/ADT/STLExtras.h>
#include <llvm/ADT/SmallVector.h>
#include <llvm/ADT/StringSet.h>

namespace gravure {
namespace {

bool isInput(const Value* value) {
  return value->node()->kind() == c10::prim::Param &&
         value->node()->owningBlock() == value->owningGraph()->block();
}

/// Names of saved inputs of all entries.
llvm::StringSet<> savedNames(const Program& program) {
  llvm::StringSet<> names;
  for (const Entry& entry : program.entries) {
    for (const InputInfo& info : entry.inputs) {
      if (info.role == InputRole::Saved) names.insert(info.name);
    }
  }
  return names;
}

bool isResult(const OutputInfo& info, const llvm::StringSet<>& saved) {
  switch (info.role) {
    case OutputRole::Mutation:
    case OutputRole::Alias: return false;
    case OutputRole::Saved: return !saved.contains(info.name);
    default: return true;
  }
}

/// True if output `o` must be moved out: a tensor of the program's device that a node made.
bool isMovedOut(const Entry& entry, size_t o, const llvm::StringSet<>& saved, c10::Device device) {
  const Value* value = entry.graph->outputs()[o];
  if (!isResult(entry.outputs[o], saved) || isInput(value) || !isTensorValue(value)) return false;
  const auto at = deviceOf(value);
  return !at || at->type() == device.type();
}

class Emitter {
 public:
  Emitter(Entry& entry, const llvm::StringSet<>& saved, c10::Device device)
      : entry_(entry), graph_(*entry.graph), saved_(saved), device_(device) {}

  void run() {
    std::vector<Partition> partitions;
    for (Node* node : graph_.nodes()) {
      if (node->kind() == cg::partition) partitions.push_back({node, stagedOperands(node)});
    }
    stageInputs(partitions);
    for (const Partition& partition : partitions) stageOthers(partition);
    for (const Partition& partition : partitions) launch(partition.node);
    moveOut();
  }

 private:
  /// An operand that is copied, and the planned offset of its copy.
  struct StagedOperand {
    size_t index;
    int64_t offset;
  };
  struct Partition {
    Node* node;
    llvm::SmallVector<StagedOperand, 2> staged;
  };

  static llvm::SmallVector<StagedOperand, 2> stagedOperands(const Node* partition) {
    const std::vector<OperandTag> tags = tagsOf(partition);
    TORCH_CHECK(tags.size() == partition->inputs().size(), "emit-runtime-calls: partition ",
                partitionIndex(partition), " has ", partition->inputs().size(), " operands and ",
                tags.size(), " tags; run tag-static-inputs first");
    const std::vector<int64_t> offsets = intsAttr(partition, attr::staging);
    llvm::SmallVector<StagedOperand, 2> staged;
    for (size_t i = 0; i < tags.size(); ++i) {
      if (tags[i].kind != OperandKind::Staged) continue;
      staged.push_back({i, i < offsets.size() ? offsets[i] : -1});
    }
    return staged;
  }

  /// One node for all inputs, in the order of the entry.
  void stageInputs(const std::vector<Partition>& partitions) {
    std::vector<int64_t> offsetOf(graph_.inputs().size(), -1);
    std::vector<bool> wanted(graph_.inputs().size(), false);
    for (const auto& [partition, staged] : partitions) {
      for (const auto& [i, offset] : staged) {
        if (!isInput(partition->input(i))) continue;
        wanted[partition->input(i)->offset()] = true;
        offsetOf[partition->input(i)->offset()] = offset;
      }
    }
    std::vector<Value*> inputs;
    std::vector<int64_t> offsets;
    for (size_t i = 0; i < wanted.size(); ++i) {
      if (!wanted[i]) continue;
      inputs.push_back(graph_.inputs()[i]);
      offsets.push_back(offsetOf[i]);
    }
    if (!inputs.empty()) graph_.prependNode(stageNode(inputs, std::move(offsets)));
  }

  void stageOthers(const Partition& partition) {
    std::vector<Value*> values;
    std::vector<int64_t> offsets;
    for (const auto& [i, offset] : partition.staged) {
      Value* value = partition.node->input(i);
      if (isInput(value) || staged_.contains(value)) continue;
      values.push_back(value);
      offsets.push_back(offset);
    }
    if (!values.empty()) stageNode(values, std::move(offsets))->insertBefore(partition.node);
    for (const auto& [i, offset] : partition.staged) {
      partition.node->replaceInput(i, staged_.lookup(partition.node->input(i)));
    }
  }

  Node* stageNode(const std::vector<Value*>& values, std::vector<int64_t> offsets) {
    Node* node = graph_.create(cg::stage, 0);
    for (Value* value : values) {
      node->addInput(value);
      staged_[value] = addCopy(node, value, ".staged");
    }
    bool planned = false;
    for (int64_t offset : offsets) planned |= offset >= 0;
    if (planned) node->is_(attr::arena, std::move(offsets));
    return node;
  }

  static Value* addCopy(Node* node, const Value* value, const char* ending) {
    Value* copy = node->addOutput();
    copy->setType(value->type());
    nameAfter(copy, value, ending);
    return copy;
  }

  /// The partition's nodes move over; its values hand their names on.
  void launch(Node* partition) {
    Node* node = graph_.create(cg::launch, 0)->insertBefore(partition);
    node->copyAttributes(*partition);
    forgetFacts(node);
    dropAttribute(node, attr::staging);
    copyLocation(node, partition);
    for (Value* operand : partition->inputs()) node->addInput(operand);
    Block* from = partition->blocks().at(0);
    Block* to = node->addBlock();
    for (Value* parameter : from->inputs()) {
      parameter->replaceAllUsesDominatedByNodeWith(from->param_node(),
                                                   successor(parameter, to->addInput()));
    }
    while (*from->nodes().begin() != from->return_node()) {
      (*from->nodes().begin())->moveBefore(to->return_node());
    }
    for (Value* result : from->outputs()) to->registerOutput(result);
    for (Value* output : partition->outputs()) {
      output->replaceAllUsesAfterNodeWith(partition, successor(output, node->addOutput()));
    }
    partition->destroy();
  }

  /// `value` takes type and name of `old`. Its uses are moved by the caller: replaceAllUsesWith would
  /// take quadratic time in their number.
  static Value* successor(Value* old, Value* value) {
    value->setType(old->type());
    takeName(value, old);
    return value;
  }

  void moveOut() {
    Node* own = nullptr;
    llvm::DenseMap<const Value*, Value*> moved;
    for (size_t o = 0; o < graph_.outputs().size(); ++o) {
      if (!isMovedOut(entry_, o, saved_, device_)) continue;
      Value* value = graph_.outputs()[o];
      Value*& copy = moved[value];
      if (!copy) {
        if (!own) own = graph_.create(cg::own, 0)->insertBefore(graph_.return_node());
        own->addInput(value);
        copy = addCopy(own, value, ".own");
      }
      graph_.block()->replaceOutput(o, copy);
    }
  }

  Entry& entry_;
  Graph& graph_;
  const llvm::StringSet<>& saved_;
  c10::Device device_;
  llvm::DenseMap<const Value*, Value*> staged_;
};

void verifyLaunch(const Node* node) {
  const std::vector<OperandTag> tags = tagsOf(node);
  TORCH_CHECK(tags.size() == node->inputs().size(), "emit-runtime-calls: launch ",
              partitionIndex(node), " has ", node->inputs().size(), " operands and ", tags.size(),
              " tags");
  for (size_t i = 0; i < tags.size(); ++i) {
    const bool copied = node->input(i)->node()->kind() == cg::stage;
    TORCH_CHECK(copied == (tags[i].kind == OperandKind::Staged), "emit-runtime-calls: operand %",
                node->input(i)->debugName(), " of launch ", partitionIndex(node), " is tagged '",
                tagText(tags[i]), "' and ", copied ? "comes from a copy" : "is not copied");
  }
}

}  // namespace

void emitRuntimeCalls(Program& program, PassContext&) {
  const llvm::StringSet<> saved = savedNames(program);
  const c10::Device device = computeDevice(program);
  for (Entry& entry : program.entries) Emitter(entry, saved, device).run();
}

void verifyEmitRuntimeCalls(const Program& program, const PassContext& context) {
  const llvm::StringSet<> saved = savedNames(program);
  const c10::Device device = computeDevice(program);
  for (const Entry& entry : program.entries) {
    for (const Node* node : entry.graph->nodes()) {
      TORCH_CHECK(node->kind() != cg::partition, "emit-runtime-calls: partition ",
                  partitionIndex(node), " is left in ", entry.name);
      if (node->kind() == cg::launch) verifyLaunch(node);
    }
    for (size_t o = 0; o < entry.graph->outputs().size(); ++o) {
      const Value* value = entry.graph->outputs()[o];
      TORCH_CHECK(!isMovedOut(entry, o, saved, device) || value->node()->kind() == cg::own,
                  "emit-runtime-calls: ", entry.name, " returns %", value->debugName(),
                  " from the arena, where the next step overwrites it");
    }
  }
  const MemoryPlan plan = writtenPlan(program, context.options, context.analyses);
  const bool planned =
      llvm::any_of(plan.buffers, [](const Buffer& buffer) { return buffer.offset >= 0; });
  const std::string fault = planned ? plan.verify() : "";
  TORCH_CHECK(fault.empty(), "emit-runtime-calls: ", fault);
}

}  // namespace gravure
