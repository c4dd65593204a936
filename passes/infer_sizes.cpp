#include "passes/infer_sizes.h"

#include "ir/core/args.h"
#include "ir/core/counted.h"
#include "ir/core/tensor_type.h"
#include "ir/facts/value_types.h"
#include "passes/analysis/size_terms.h"

#include <llvm/ADT/STLExtras.h>
#include <llvm/ADT/StringMap.h>

#include <utility>

namespace gravure {
namespace {

constexpr const char* kPass = "infer-sizes";

/// The type with every size that the terms know; nullptr if they know none that it lacks.
c10::TypePtr closedType(const Value* value, SizeTerms& terms) {
  const auto* type = tensorTypeOf(value);
  if (!type || !hasOpenSize(*type)) return nullptr;
  const auto known = terms.sizesOf(value);
  Dims sizes;
  bool found = false;
  for (size_t d = 0; d < known->size(); ++d) {
    sizes.push_back(type->sizes()[d]);
    if (sizes.back()) continue;
    const auto size = terms.constantOf((*known)[d]);
    if (!size || *size < 0) continue;
    sizes.back() = size;
    found = true;
  }
  return found ? withSizes(*type, sizes) : nullptr;
}

/// What an entry's values turn out to be.
struct Findings {
  std::vector<std::pair<Value*, c10::TypePtr>> types;
  std::vector<std::pair<Value*, int64_t>> numbers;
};

/// True if the node may have a constant where it has a value.
bool takesConstants(const torch::jit::Use& use) {
  return use.user->kind() != c10::prim::Return && factsOf(use.user).schema;
}

/// Calls `visit(entry, findings)` for each entry in order.
template <typename Visit>
void forEachEntry(const Program& program, Visit&& visit) {
  SizeTerms terms;
  for (const Entry& entry : program.entries) {
    terms.enter(entry);
    Findings findings;
    const auto look = [&](Value* value) {
      if (auto type = closedType(value, terms)) findings.types.emplace_back(value, std::move(type));
    };
    for (size_t i = 0; i < entry.inputs.size(); ++i) {
      // What is saved has the type that it was saved with: matchSaved().
      if (entry.inputs[i].role != InputRole::Saved) look(entry.graph->inputs()[i]);
    }
    for (Node* node : entry.graph->nodes()) {
      terms.learn(node);
      for (Value* output : node->outputs()) {
        look(output);
        if (output->type()->kind() != c10::TypeKind::IntType ||
            llvm::none_of(output->uses(), takesConstants))
          continue;
        const auto number = terms.constantOf(terms.ofNumber(output));
        if (number) findings.numbers.emplace_back(output, *number);
      }
    }
    terms.leave(entry);
    visit(entry, findings);
  }
}

Arg withConstant(const Arg& arg, uint32_t input, int64_t number) {
  if (arg.is<InputArg>()) {
    const uint32_t index = arg.as<InputArg>().index;
    if (index == input) return number;
    return InputArg{index > input ? index - 1 : index};
  }
  const auto* elements = arg.elements();
  if (!elements) return arg;
  std::vector<Arg> changed;
  for (const Arg& element : *elements) changed.push_back(withConstant(element, input, number));
  return arg.is<ListArg>() ? Arg(ListArg{std::move(changed)}) : Arg(TupleArg{std::move(changed)});
}

/// Input `input` of `node` becomes a constant among its arguments.
void makeConstant(Node* node, uint32_t input, int64_t number) {
  const ArgList& old = argsOf(node);
  auto args = c10::make_intrusive<ArgList>();
  for (const Arg& arg : old.args) args->args.push_back(withConstant(arg, input, number));
  args->rng = old.rng > static_cast<int32_t>(input) ? old.rng - 1 : old.rng;
  node->removeInput(input);
  setArgs(node, std::move(args));
}

void replaceNumber(Value* number, int64_t constant) {
  const auto uses = number->uses();  // copied: it changes
  for (const torch::jit::Use& use : llvm::reverse(uses)) {
    if (!takesConstants(use)) continue;
    makeConstant(use.user, static_cast<uint32_t>(use.offset), constant);
  }
  Node* node = number->node();
  if (!number->hasUses() && node->kind() != c10::prim::Param && node->outputs().size() == 1 &&
      !factsOf(node).effects && !factsOf(node).reason) {
    node->destroy();
  }
}

/// What an earlier entry saves is of one type there and here. In the backward more is known of it, as
/// splits of the forward have got past their check; where it is saved, they may not have. True if that
/// changed a type.
bool matchSaved(Program& program) {
  bool changed = false;
  llvm::StringMap<const Value*> saved;
  for (Entry& entry : program.entries) {
    for (size_t i = 0; i < entry.inputs.size(); ++i) {
      if (entry.inputs[i].role != InputRole::Saved) continue;
      const auto from = saved.find(entry.inputs[i].name);
      if (from == saved.end()) continue;
      Value* input = entry.graph->inputs()[i];
      changed |= *input->type() != *from->second->type();
      input->setType(from->second->type());
    }
    for (size_t o = 0; o < entry.outputs.size(); ++o) {
      if (entry.outputs[o].role == OutputRole::Saved)
        saved.try_emplace(entry.outputs[o].name, entry.graph->outputs()[o]);
    }
  }
  return changed;
}

/// True if some value has a size that is not known, or is an int: only then is there something to infer.
bool hasOpenValues(const Entry& entry) {
  const auto isOpen = [](const Value* value) {
    if (value->type()->kind() == c10::TypeKind::IntType) return true;
    const auto* type = tensorTypeOf(value);
    return type && hasOpenSize(*type);
  };
  const auto& graph = std::as_const(*entry.graph);
  return llvm::any_of(graph.inputs(), isOpen) || llvm::any_of(graph.nodes(), [&](const Node* node) {
           return llvm::any_of(node->outputs(), isOpen);
         });
}

}  // namespace

void inferSizes(Program& program, PassContext& context) {
  if (llvm::none_of(program.entries, hasOpenValues)) {
    context.unchanged = !matchSaved(program);
    return;
  }
  // Types first: what the next entry's inputs are is told by this one's outputs, as they were.
  std::vector<Findings> all;
  forEachEntry(program, [&](const Entry&, Findings& found) { all.push_back(std::move(found)); });
  bool found = false;
  for (size_t e = 0; e < all.size(); ++e) {
    found |= !all[e].types.empty() || !all[e].numbers.empty();
    for (auto& [value, type] : all[e].types) {
      if (context.rewrites.next(kPass, "sizes of a value of", value->node())) value->setType(type);
    }
    if (!all[e].types.empty()) {
      const Value* first = all[e].types.front().first;
      context.remarks.add(
          RemarkKind::Passed, kPass, "sizes-inferred", first->node(),
          "the sizes of " + counted(static_cast<int64_t>(all[e].types.size()), "tensor") + " of " +
              program.entries[e].name + " follow from others, %" + first->debugName() + " first");
    }
    for (const auto& [number, constant] : llvm::reverse(all[e].numbers)) {
      if (context.rewrites.next(kPass, "constant for", number->node()))
        replaceNumber(number, constant);
    }
  }
  const bool matched = matchSaved(program);
  context.unchanged = !found && !matched;
}

}  // namespace gravure
