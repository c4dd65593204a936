#include "tools/gravure/proof/node_run.h"

#include "ir/core/args.h"
#include "ir/core/cudagraph_ops.h"
#include "ir/facts/op_facts.h"
#include "ir/facts/value_types.h"
#include "runtime/device/rng.h"
#include "runtime/program/collectives.h"
#include "runtime/program/compile_call.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/clone.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/GradMode.h>
#include <llvm/ADT/STLExtras.h>

#include <cstring>

namespace gravure::tool {
namespace {

/// As the runtime runs operators.
struct BelowAutograd {
  at::AutoDispatchBelowADInplaceOrView autograd;
  c10::impl::ExcludeDispatchKeyGuard autocast{c10::autocast_dispatch_keyset};
  c10::AutoGradMode gradMode{true};
};

std::string nameOf(const Node* node) { return node->kind().toQualString(); }

/// New memory whose contents nobody wrote.
bool makesEmpty(const std::string& op) {
  return op.starts_with("aten::empty") || op.starts_with("aten::new_empty");
}

/// Reads of its tensor operands nothing but their shape.
bool readsShapeAlone(const Node* node, const std::string& op) {
  return factsOf(node).numbersOnly || makesEmpty(op) || op.starts_with("aten::new_") ||
         op.ends_with("_like");
}

c10::IValue copyOf(const c10::IValue& value) {
  if (!value.isTensor() || !value.toTensor().defined()) return value;
  return value.toTensor().clone();
}

std::string sizesText(const at::Tensor& tensor) {
  std::string text = std::string(c10::toString(tensor.scalar_type())) + "(";
  for (int64_t size : tensor.sizes())
    text += (text.back() == '(' ? "" : ", ") + std::to_string(size);
  text += ", strides=[";
  for (int64_t stride : tensor.strides())
    text += (text.back() == '[' ? "" : ", ") + std::to_string(stride);
  return text + "])";
}

}  // namespace

bool shareMemory(const at::Tensor& a, const at::Tensor& b) {
  if (!a.has_storage() || !b.has_storage()) return false;
  const auto* begin = static_cast<const char*>(a.storage().data());
  const auto* other = static_cast<const char*>(b.storage().data());
  if (a.storage().nbytes() == 0 || b.storage().nbytes() == 0) return false;
  return begin < other + b.storage().nbytes() && other < begin + a.storage().nbytes();
}

void poison(const at::Tensor& tensor) {
  if (tensor.numel() == 0 || at::has_internal_overlap(tensor) == at::MemOverlap::Yes) return;
  std::vector<char> ones(tensor.nbytes(), '\xff');
  tensor.copy_(at::from_blob(ones.data(), tensor.sizes(), tensor.options()));
}

void forEachTensor(const c10::IValue& value, const std::function<void(const at::Tensor&)>& visit) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) visit(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& member : value.toTensorVector()) {
      if (member.defined()) visit(member);
    }
  } else if (value.isList()) {
    for (const c10::IValue& member : value.toListRef()) forEachTensor(member, visit);
  } else if (value.isTuple()) {
    for (const c10::IValue& member : value.toTupleRef().elements()) forEachTensor(member, visit);
  }
}

NodeRun::NodeRun(Program program, AsyncCollectives* collectives, bool lateCopies)
    : program_(std::move(program)), collectives_(collectives),
      lateCopies_(lateCopies), devices_{computeDevice(program_), c10::kCPU} {}

void NodeRun::beginStep() {
  for (c10::IValue& value : frame_) value = c10::IValue();
  inputs_.clear();
  staged_.clear();
  placed_.clear();
  late_.clear();
  violations_.clear();
  effects_.clear();
  collectiveCalls_.clear();
  mistyped_.clear();
  if (collectives_) collectives_->forget();
}

Slot NodeRun::slotOf(const Value* value) {
  const auto [at, fresh] = slots_.try_emplace(value, static_cast<Slot>(frame_.size()));
  if (fresh) {
    frame_.emplace_back();
    defined_.push_back(false);
  }
  return at->second;
}

void NodeRun::define(const Value* value, c10::IValue result) {
  const Slot slot = slotOf(value);
  frame_[slot] = std::move(result);
  defined_[slot] = true;
}

const c10::IValue& NodeRun::valueOf(const Value* value) {
  const Slot slot = slotOf(value);
  TORCH_CHECK(defined_[slot], "%", value->debugName(), " is used before it is made");
  return frame_[slot];
}

std::vector<c10::IValue> NodeRun::run(const Entry& entry, const std::vector<c10::IValue>& inputs) {
  const BelowAutograd guards;
  const Graph& graph = *entry.graph;
  TORCH_INTERNAL_ASSERT(inputs.size() == graph.inputs().size());
  std::fill(defined_.begin(), defined_.end(), false);
  staged_.clear();
  for (size_t i = 0; i < inputs.size(); ++i) {
    define(graph.inputs()[i], inputs[i]);
    if (entry.inputs[i].role == InputRole::Saved) continue;  // the program's own, or given before
    // What is written or handed back is no copy: a partition is replayed only while it stays.
    const bool inPlace = llvm::any_of(entry.outputs, [&](const OutputInfo& output) {
      return output.input == static_cast<int64_t>(i);
    });
    if (inPlace) continue;
    forEachTensor(inputs[i], [&](const at::Tensor& tensor) { inputs_.push_back(tensor); });
  }
  runBlock(graph.block());
  deliverCopies();  // the caller waits before he reads
  if (collectives_) {
    for (const std::string& violation : collectives_->violations())
      violations_.push_back(violation);
  }
  std::vector<c10::IValue> outputs;
  for (const Value* output : graph.outputs()) outputs.push_back(valueOf(output));
  return outputs;
}

void NodeRun::runBlock(const Block* block) {
  for (const Node* node : block->nodes()) {
    try {
      runNode(node);
    } catch (c10::Error& error) {
      if (node->blocks().empty()) addLocation(error, node);
      throw;
    }
  }
}

void NodeRun::runNode(const Node* node) {
  if (node->kind() == c10::prim::If) return runBranch(node);
  if (isPartition(node)) return runPartition(node);
  if (node->kind() == cg::stage || node->kind() == cg::own) return runCopies(node);
  runCall(node);
}

void NodeRun::runBranch(const Node* node) {
  const Block* block = node->blocks()[valueOf(node->input(0)).toBool() ? 0 : 1];
  runBlock(block);
  for (size_t i = 0; i < node->outputs().size(); ++i) {
    define(node->outputs()[i], valueOf(block->outputs()[i]));
  }
}

/// A replay reads the address that was captured. What passes say of values inside the program is the
/// plan's matter; what the caller gives, he gives anew wherever he likes.
void NodeRun::checkAddress(const Node* partition, size_t index, const at::Tensor& operand) {
  const bool given =
      llvm::any_of(inputs_, [&](const at::Tensor& input) { return shareMemory(input, operand); });
  if (!given) return;
  const auto [at, first] = addresses_.try_emplace({partition, index}, operand.const_data_ptr());
  if (first || at->second == operand.const_data_ptr()) return;
  violations_.push_back("partition " + std::to_string(partitionIndex(partition)) + " takes %" +
                        partition->input(index)->debugName() +
                        " where it was captured, and the caller gives it at another address");
}

c10::IValue NodeRun::operandOf(const Node* partition, size_t index) {
  const Value* value = partition->input(index);
  const c10::IValue& operand = valueOf(value);
  const auto tags = tagsOf(partition);
  if (index >= tags.size() || !operand.isTensor() || !operand.toTensor().defined()) return operand;
  const OperandTag& tag = tags[index];
  const bool isLaunch = partition->kind() == cg::launch;
  if (tag.kind == OperandKind::Staged && !isLaunch) {
    at::Tensor& copy = staged_[value];
    if (copy.defined()) return copy;
    copy = operand.toTensor().clone();
    const auto offsets = intsAttr(partition, attr::staging);
    if (index < offsets.size()) place(offsets[index], value, copy);
    return copy;
  }
  const bool inPlace = tag.why.starts_with("mutated") || tag.why.starts_with("aliased");
  if (tag.kind != OperandKind::Guarded && !inPlace)
    checkAddress(partition, index, operand.toTensor());
  return operand;
}

void NodeRun::runPartition(const Node* node) {
  const Block* block = node->blocks().front();
  for (size_t i = 0; i < node->inputs().size(); ++i) define(block->inputs()[i], operandOf(node, i));
  runBlock(block);
  for (size_t i = 0; i < node->outputs().size(); ++i) {
    define(node->outputs()[i], valueOf(block->outputs()[i]));
  }
}

void NodeRun::runCopies(const Node* node) {
  for (size_t i = 0; i < node->inputs().size(); ++i) {
    define(node->outputs()[i], copyOf(valueOf(node->input(i))));
  }
  placeOutputs(node, {});
}

bool NodeRun::waitsForDevice(const Node* node) const {
  if (devices_.from.is_cpu()) return true;
  const auto onDevice = [&](const Value* value) {
    const auto device = deviceOf(value);
    return device && devices_.computes(*device);
  };
  if (llvm::none_of(node->inputs(), onDevice)) return false;
  const auto& reason = factsOf(node).reason;
  if (reason == HostReason::HostSync || reason == HostReason::DataDependentShape) return true;
  return llvm::any_of(node->outputs(), [](const Value* value) {
    const auto device = deviceOf(value);
    return device && device->is_cpu();
  });
}

/// A copy from the program's device to the CPU with non_blocking=True; `stack_` holds its operands.
bool NodeRun::isLateCopy(const Node* node) const {
  if (!lateCopies_ || devices_.from.is_cpu() || node->outputs().size() != 1) return false;
  const auto* schema = factsOf(node).schema;
  const auto to = deviceOf(node->output());
  if (!schema || !to || !to->is_cpu() || !waitsForDevice(node)) return false;
  const auto at = schema->argumentIndexWithName("non_blocking");
  return at && stack_[*at].isBool() && stack_[*at].toBool();
}

void NodeRun::deliverCopies() {
  for (const LateCopy& late : late_) late.copy.copy_(late.data);
  late_.clear();
}

void NodeRun::noteEffect(const Node* node) {
  std::string text = nameOf(node) + "(";
  for (const c10::IValue& value : stack_) {
    forEachTensor(value, [&](const at::Tensor& tensor) {
      const at::Tensor dense = tensor.contiguous();
      const std::string_view bytes(static_cast<const char*>(dense.const_data_ptr()),
                                   dense.nbytes());
      text += sizesText(tensor) + " " + std::to_string(std::hash<std::string_view>()(bytes)) + " ";
    });
    if (value.isScalar()) text += std::to_string(value.toScalar().toDouble()) + " ";
    if (value.isString()) text += value.toStringRef() + " ";
  }
  (factsOf(node).collective ? collectiveCalls_ : effects_).push_back(text + ")");
}

void NodeRun::runCall(const Node* node) {
  auto& call = calls_[node];
  if (!call) {
    call = std::make_unique<Call>(
        compileCall(node, devices_, [this](const Value* value) { return slotOf(value); }));
  }
  for (const Value* input : node->inputs()) (void)valueOf(input);
  const OpFacts& facts = factsOf(node);
  const std::string op = nameOf(node);
  stack_.clear();
  call->push(frame_, stack_);
  if (facts.effects || facts.collective) noteEffect(node);
  std::vector<at::Tensor> operands, open;
  for (const c10::IValue& value : stack_) {
    forEachTensor(value, [&](const at::Tensor& tensor) {
      operands.push_back(tensor);
      if (collectives_ && !facts.wait && collectives_->isOpenResult(tensor)) open.push_back(tensor);
    });
  }
  const bool late = isLateCopy(node);
  if (!late && waitsForDevice(node)) deliverCopies();
  if (collectives_) {
    collectives_->setName(describe(node));
    if (facts.collective) {
      for (const std::string& group : groupNamesOf(node)) collectives_->addGroup(group);
    }
  }
  if (call->rng == kNoSlot) {
    call->run(stack_);
  } else {
    RngScope scope(c10::kCPU, frame_[call->rng]);
    call->run(stack_);
  }
  call->store(stack_, frame_);
  for (const Value* output : node->outputs()) defined_[slotOf(output)] = true;

  for (const at::Tensor& tensor : open) {
    bool views = !node->outputs().empty();
    for (const Value* output : node->outputs()) {
      forEachTensor(valueOf(output),
                    [&](const at::Tensor& result) { views &= shareMemory(result, tensor); });
    }
    if (views || readsShapeAlone(node, op)) continue;
    collectives_->addViolation(describe(node) + " reads the result of " +
                               collectives_->startOf(tensor) + ", which was not waited for");
  }
  if (collectives_) collectives_->look(describe(node));
  if (makesEmpty(op)) forEachTensor(valueOf(node->output()), poison);
  if (late) {
    const at::Tensor& copy = valueOf(node->output()).toTensor();
    late_.push_back({copy, copy.clone()});
    poison(copy);
  }
  placeOutputs(node, operands);
  for (const Value* output : node->outputs()) checkType(output);
}

/// Where a value is planned over others, those are gone.
void NodeRun::place(int64_t offset, const Value* value, const at::Tensor& tensor) {
  if (offset < 0) return;
  const int64_t bytes =
      storageBytes(*value->type()).value_or(static_cast<int64_t>(tensor.nbytes()));
  for (const Placed& other : placed_) {
    const bool overlaps = offset < other.offset + other.bytes && other.offset < offset + bytes;
    if (overlaps && !shareMemory(other.tensor, tensor)) poison(other.tensor);
  }
  std::erase_if(placed_, [&](const Placed& other) {
    return offset < other.offset + other.bytes && other.offset < offset + bytes;
  });
  placed_.push_back({offset, bytes, tensor});
}

void NodeRun::placeOutputs(const Node* node, const std::vector<at::Tensor>& operands) {
  if (!node->hasAttribute(attr::arena)) return;
  const auto offsets = intsAttr(node, attr::arena);
  for (size_t o = 0; o < node->outputs().size() && o < offsets.size(); ++o) {
    const c10::IValue& value = valueOf(node->output(o));
    if (!value.isTensor() || !value.toTensor().defined()) continue;
    const at::Tensor& tensor = value.toTensor();
    const bool aliases = llvm::any_of(
        operands, [&](const at::Tensor& operand) { return shareMemory(operand, tensor); });
    if (!aliases) place(offsets[o], node->output(o), tensor);
  }
}

void NodeRun::checkType(const Value* value) {
  const auto* type = tensorTypeOf(value);
  const c10::IValue& result = valueOf(value);
  if (!type || !result.isTensor() || !result.toTensor().defined()) return;
  const at::Tensor& tensor = result.toTensor();
  bool same = !type->scalarType() || *type->scalarType() == tensor.scalar_type();
  same &= !type->dim() || static_cast<int64_t>(*type->dim()) == tensor.dim();
  for (int64_t i = 0; same && type->dim() && i < tensor.dim(); ++i) {
    const auto size = type->sizes()[i];
    same &= !size || *size == tensor.size(i);
    const auto stride = type->strides()[i];
    same &= !stride || tensor.size(i) < 2 || *stride == tensor.stride(i);
  }
  if (!same) mistyped_[value->debugName()] = sizesText(tensor) + " and not " + value->type()->str();
}

}  // namespace gravure::tool
