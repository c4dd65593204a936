#include "passes/accumulate_gradients.h"

#include "ir/core/counted.h"
#include "ir/core/fresh_name.h"
#include "ir/core/location.h"
#include "ir/facts/value_types.h"
#include "ir/memory/entry_memory.h"

#include <ATen/core/jit_type.h>
#include <ATen/ops/empty_strided.h>
#include <llvm/ADT/STLExtras.h>
#include <llvm/ADT/StringMap.h>
#include <llvm/ADT/StringRef.h>
#include <llvm/ADT/StringSet.h>

#include <optional>

namespace gravure {
namespace {

constexpr const char* kPass = "accumulate-gradients";
constexpr const char* kSuffix = ".grad";
const c10::Symbol kAdd = c10::Symbol::fromQualString("aten::add_");

/// The tensor that a gradient belongs to, whichever entry takes it.
struct Owner {
  const Value* value = nullptr;
  InputRole role = InputRole::Unspecified;
};
using Owners = llvm::StringMap<Owner>;

Owners ownersOf(const Program& program) {
  Owners owners;
  for (const Entry& entry : program.entries) {
    for (size_t i = 0; i < entry.inputs.size(); ++i) {
      const InputInfo& info = entry.inputs[i];
      if (info.role != InputRole::Saved && !info.name.empty())
        owners.try_emplace(info.name, Owner{entry.graph->inputs()[i], info.role});
    }
  }
  return owners;
}

/// Why the gradient stays a result; "" if it can be added to a buffer.
std::string whyReturned(const Value* gradient, const Owner& owner) {
  if (!owner.value) return "the program does not take the tensor that it belongs to";
  if (!isKeptByCaller(owner.role)) return "the tensor that it belongs to is given anew each step";
  if (!isTensorValue(gradient)) return "it is no tensor";
  if (!hasStaticShape(gradient) || !hasStaticShape(owner.value))
    return "its shape is known only at run time";
  const auto* mine = tensorTypeOf(gradient);
  const auto* other = tensorTypeOf(owner.value);
  const bool alike = mine->scalarType() == other->scalarType() &&
                     mine->sizes().concrete_sizes() == other->sizes().concrete_sizes() &&
                     mine->device() == other->device();
  return alike ? "" : "its shape, dtype or device is not that of its tensor";
}

c10::TypePtr bufferType(const Value* owner) {
  const auto* type = tensorTypeOf(owner);
  const auto sizes = *type->sizes().concrete_sizes();
  auto strides = *type->strides().concrete_sizes();
  const at::Tensor shaped = at::empty_strided(sizes, strides, at::TensorOptions(at::kMeta));
  if (!shaped.is_non_overlapping_and_dense()) strides = c10::TensorType::contiguousStridesOf(sizes);
  return c10::TensorType::create(type->scalarType(), type->device(),
                                 c10::VaryingShape<int64_t>(sizes),
                                 c10::VaryingShape<int64_t>(strides), std::nullopt);
}

class Accumulator {
 public:
  Accumulator(Entry& entry, const Owners& owners, PassContext& context)
      : entry_(entry), graph_(*entry.graph), owners_(owners),
        memory_(context.analyses.memoryOf(entry)), remarks_(context.remarks),
        rewrites_(context.rewrites) {}

  void run() {
    std::vector<size_t> added;
    for (size_t o = 0; o < entry_.outputs.size(); ++o) {
      if (entry_.outputs[o].role != OutputRole::Gradient) continue;
      const std::string& name = entry_.outputs[o].name;
      Value* gradient = graph_.outputs()[o];
      const Owner owner = owners_.lookup(name);
      const std::string why = whyReturned(gradient, owner);
      if (!why.empty()) {
        remarks_.add(RemarkKind::Missed, kPass, "gradient-returned",
                     "the gradient of \"" + name + "\" in " + entry_.name +
                         " stays a result: " + why);
        continue;
      }
      if (!rewrites_.next(kPass, "gradient made by", gradient->node())) break;
      add(gradient, name, bufferType(owner.value));
      added.push_back(o);
    }
    // From the end: gradients mostly stand there, and each erasure moves what is behind it.
    for (size_t o : llvm::reverse(added)) {
      graph_.eraseOutput(o);
      entry_.outputs.erase(entry_.outputs.begin() + static_cast<int64_t>(o));
    }
    if (!added.empty()) {
      remarks_.add(RemarkKind::Passed, kPass, "gradients-accumulated",
                   counted(static_cast<int64_t>(added.size()), "gradient") + " of " + entry_.name +
                       (added.size() == 1 ? " is added" : " are added") +
                       " to the caller's buffers");
    }
  }

 private:
  void add(Value* gradient, const std::string& name, const c10::TypePtr& type) {
    const std::string stem = gradient->hasDebugName() ? gradient->debugName() : "gradient";
    Value* buffer = graph_.addInput(freshName(graph_, stem + ".buffer"));
    buffer->setType(type);
    entry_.inputs.push_back({InputRole::Buffer, name + kSuffix});
    Node* node = graph_.create(kAdd, {buffer, gradient}, 1);
    setOverload(node, "Tensor");
    copyLocation(node, gradient->node());
    node->output()->setType(type);
    node->output()->setDebugName(freshName(graph_, stem + ".sum"));
    if (const Node* at = placeBehind(gradient)) {
      node->insertAfter(const_cast<Node*>(at));
    } else {
      node->insertBefore(graph_.return_node());
    }
  }

  /// The node that makes the gradient; nullptr if what is there then may change until the entry ends.
  const Node* placeBehind(const Value* gradient) const {
    const StorageAccesses& accesses = memory_->accesses;
    const int32_t storage = accesses.storageOf(gradient);
    const bool isFinal =
        storage >= 0 && !accesses.isExternal(storage) && accesses.isNeverWritten(gradient);
    return isFinal && gradient->node()->kind() != c10::prim::Param ? gradient->node() : nullptr;
  }

  Entry& entry_;
  Graph& graph_;
  const Owners& owners_;
  const std::shared_ptr<const EntryMemory> memory_;
  Remarks& remarks_;
  RewriteLimit& rewrites_;
};

bool isGradientBuffer(const InputInfo& info, const Owners& owners) {
  llvm::StringRef name(info.name);
  return info.role == InputRole::Buffer && name.consume_back(kSuffix) && owners.count(name) > 0;
}

}  // namespace

void accumulateGradients(Program& program, PassContext& context) {
  context.unchanged = !context.options.accumulateGradients;
  if (context.unchanged) return;
  const Owners owners = ownersOf(program);
  for (Entry& entry : program.entries) Accumulator(entry, owners, context).run();
}

void verifyAccumulateGradients(const Program& program, const PassContext& context) {
  if (!context.options.accumulateGradients) return;
  const Owners owners = ownersOf(program);
  for (const Entry& entry : program.entries) {
    llvm::StringSet<> returned;
    for (const OutputInfo& info : entry.outputs) {
      if (info.role == OutputRole::Gradient) returned.insert(info.name + kSuffix);
    }
    for (size_t i = 0; i < entry.inputs.size(); ++i) {
      if (!isGradientBuffer(entry.inputs[i], owners)) continue;
      const auto& uses = entry.graph->inputs()[i]->uses();
      TORCH_CHECK(uses.size() == 1 && uses[0].user->kind() == kAdd && uses[0].offset == 0,
                  "accumulate-gradients: \"", entry.inputs[i].name, "\" of ", entry.name,
                  " is not added to once and otherwise left alone");
      TORCH_CHECK(!returned.contains(entry.inputs[i].name), "accumulate-gradients: \"",
                  entry.inputs[i].name, "\" of ", entry.name,
                  " is added to, and its gradient returned as well");
    }
  }
}

}  // namespace gravure
