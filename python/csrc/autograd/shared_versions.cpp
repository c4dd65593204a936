#include "python/csrc/autograd/shared_versions.h"

#include "ir/facts/op_facts.h"
#include "ir/facts/op_table.h"
#include "ir/facts/value_types.h"

#include <c10/util/Exception.h>
#include <llvm/ADT/DenseMap.h>
#include <llvm/ADT/MapVector.h>

#include <utility>

namespace gravure {

namespace {

/// True if the schema says what the operator's results share, and no table has to.
bool saysWhatItShares(const OpFacts& facts) {
  if (!facts.maybeAliases || !facts.schema) return false;
  if (facts.handle && facts.handle->hasTag(at::Tag::maybe_aliasing_or_mutating)) return false;
  const OpRow row = opRow(facts.schema->name(), facts.schema->overload_name());
  return !row.aliasesFirst && !row.aliasesAll;
}

/// Undefined for what has no count.
at::Tensor countedTensor(const c10::IValue& value) {
  const bool counts =
      value.isTensor() && value.toTensor().defined() && !value.toTensor().is_inference();
  return counts ? value.toTensor() : at::Tensor();
}

std::vector<int64_t> outputsButGradients(const Entry& entry) {
  std::vector<int64_t> kept;
  for (size_t o = 0; o < entry.outputs.size(); ++o) {
    if (entry.outputs[o].role != OutputRole::Gradient) kept.push_back(static_cast<int64_t>(o));
  }
  return kept;
}

}  // namespace

SharedVersions::SharedVersions(const Entry& entry) : kept_(outputsButGradients(entry)) {
  // Of a value, the first one that counts with it. What a branch makes counts for itself.
  llvm::DenseMap<const Value*, const Value*> firstOf;
  const auto first = [&](const Value* value) {
    const auto known = firstOf.find(value);
    return known == firstOf.end() ? value : known->second;
  };
  for (const Node* node : entry.graph->nodes()) {
    if (!saysWhatItShares(factsOf(node))) continue;
    for (size_t o = 0; o < node->outputs().size(); ++o) {
      const auto sources = aliasedInputs(node, o);
      if (!sources.empty()) firstOf[node->output(o)] = first(sources.front());
    }
  }
  llvm::MapVector<const Value*, Group> groups;
  for (size_t i = 0; i < entry.inputs.size(); ++i) {
    const Value* input = entry.graph->inputs()[i];
    if (isTensorValue(input)) groups[input].input = static_cast<int64_t>(i);
  }
  for (const bool saved : {false, true}) {
    for (size_t o = 0; o < entry.outputs.size(); ++o) {
      const Value* output = entry.graph->outputs()[o];
      const OutputRole role = entry.outputs[o].role;
      if ((role == OutputRole::Saved) != saved || role == OutputRole::Gradient) continue;
      if (!isTensorValue(output)) continue;
      groups[first(output)].outputs.push_back(static_cast<int64_t>(o));
    }
  }
  for (auto& [value, group] : groups) {
    const size_t members = group.outputs.size() + (group.input >= 0);
    if (!group.outputs.empty() && members > 1) groups_.push_back(std::move(group));
  }
}

void SharedVersions::follow(const Entry& rewritten) {
  const std::vector<int64_t> now = outputsButGradients(rewritten);
  TORCH_INTERNAL_ASSERT(now.size() == kept_.size(), "a pass changed the results of ",
                        rewritten.name);
  llvm::DenseMap<int64_t, int64_t> position;
  for (size_t k = 0; k < now.size(); ++k) position[kept_[k]] = now[k];
  for (Group& group : groups_) {
    for (int64_t& output : group.outputs) output = position.lookup(output);
  }
  kept_ = now;
}

std::vector<at::Tensor> SharedVersions::counters(const std::vector<c10::IValue>& inputs) const {
  std::vector<at::Tensor> found(groups_.size());
  for (size_t g = 0; g < groups_.size(); ++g) {
    if (groups_[g].input >= 0) found[g] = countedTensor(inputs[groups_[g].input]);
  }
  return found;
}

void SharedVersions::share(const std::vector<at::Tensor>& counters,
                           const std::vector<c10::IValue>& results) const {
  for (size_t g = 0; g < groups_.size(); ++g) {
    at::Tensor counter = counters[g];
    for (int64_t output : groups_[g].outputs) {
      const at::Tensor tensor = countedTensor(results[output]);
      if (!tensor.defined()) continue;
      if (!counter.defined()) counter = tensor;
      if (tensor.is_same(counter)) continue;
      tensor.unsafeGetTensorImpl()->set_version_counter(
          counter.unsafeGetTensorImpl()->version_counter());
    }
  }
}

}  // namespace gravure
