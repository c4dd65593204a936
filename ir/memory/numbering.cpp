#include "ir/memory/numbering.h"

#include "ir/core/cudagraph_ops.h"

namespace gravure {

Numbering::Numbering(const Entry& entry) {
  for (const Value* input : entry.graph->inputs()) define(input, -1);
  for (Node* node : entry.graph->nodes()) {
    nodes_.push_back(node);
    facts_.push_back(&factsOf(node));
    nested_.push_back(!node->blocks().empty());
    addEdges(node);
    defineOutputs(node, size() - 1);
  }
  usedBegin_.push_back(static_cast<int32_t>(used_.size()));
  resultsBegin_.push_back(static_cast<int32_t>(results_.size()));
  for (size_t v = 0; v < storage_.size(); ++v) {
    if (storage_[v] >= 0) storage_[v] = find(static_cast<int32_t>(v));
  }
  written_.resize(storage_.size());
  for (int32_t i = 0; i < size(); ++i) {
    forEachWritten(i, [&](int32_t storage) { written_[storage] = true; });
  }
}

void Numbering::addEdges(const Node* node) {
  usedBegin_.push_back(static_cast<int32_t>(used_.size()));
  resultsBegin_.push_back(static_cast<int32_t>(results_.size()));
  for (const Value* output : node->outputs()) results_.push_back(numberOf(output));
  const auto use = [&](const Value* value) { used_.push_back(numberOf(value)); };
  const auto visit = [&](const Node* inner) {
    for (const Value* input : inner->inputs()) use(input);
    for (const Block* block : inner->blocks()) {
      for (const Value* result : block->outputs()) use(result);
    }
  };
  forEachNode(node, visit);
}

void Numbering::define(const Value* value, int32_t node) {
  const auto number = static_cast<size_t>(numberOf(value));
  if (number >= definedBy_.size()) {
    values_.resize(number + 1, nullptr);
    definedBy_.resize(number + 1, -1);
    storage_.resize(number + 1, -1);
  }
  values_[number] = const_cast<Value*>(value);
  definedBy_[number] = node;
  if (isTensorValue(value)) storage_[number] = static_cast<int32_t>(number);
}

void Numbering::defineOutputs(const Node* node, int32_t number) {
  for (const Value* output : node->outputs()) define(output, number);
  if (factsOf(node).maybeAliases) {
    for (size_t o = 0; o < node->outputs().size(); ++o) {
      for (const Value* source : aliasedInputs(node, o)) unite(source, node->output(o));
    }
  }
  for (const Block* block : node->blocks()) {
    for (size_t p = 0; p < block->inputs().size(); ++p) {
      define(block->inputs()[p], number);
      if (isPartition(node)) unite(node->input(p), block->inputs()[p]);
    }
    for (const Node* inner : block->nodes()) defineOutputs(inner, number);
    for (size_t o = 0; o < block->outputs().size(); ++o)
      unite(block->outputs()[o], node->output(o));
  }
}

int32_t Numbering::find(int32_t value) {
  while (storage_[value] != value) {
    storage_[value] = storage_[storage_[value]];
    value = storage_[value];
  }
  return value;
}

void Numbering::unite(const Value* a, const Value* b) {
  if (storage_[numberOf(a)] < 0 || storage_[numberOf(b)] < 0) return;
  const int32_t x = find(numberOf(a));
  const int32_t y = find(numberOf(b));
  if (x == y) return;
  // The value defined first is the root: an input of the entry before all others. Long chains of
  // views stay flat because each new view joins a root.
  const bool xFirst = definedBy_[x] != definedBy_[y] ? definedBy_[x] < definedBy_[y] : x < y;
  storage_[xFirst ? y : x] = xFirst ? x : y;
}

llvm::DenseSet<int32_t> resultStorages(const Entry& entry, const Numbering& numbering) {
  llvm::DenseSet<int32_t> storages;
  for (size_t o = 0; o < entry.outputs.size(); ++o) {
    if (entry.outputs[o].role == OutputRole::Saved) continue;
    storages.insert(numbering.storageOf(entry.graph->outputs()[o]));
  }
  return storages;
}

}  // namespace gravure
