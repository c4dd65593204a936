#include "passes/numbering.h"

#include "ir/cudagraph_ops.h"

namespace gravure {

Numbering::Numbering(const Entry& entry) {
  for (const Value* input : entry.graph->inputs()) define(input, -1);
  for (Node* node : entry.graph->nodes()) {
    nodes_.push_back(node);
    facts_.push_back(&factsOf(node));
    defineOutputs(node, size() - 1);
  }
  for (size_t v = 0; v < storage_.size(); ++v) {
    if (storage_[v] >= 0) storage_[v] = find(static_cast<int32_t>(v));
  }
  written_.resize(storage_.size());
  for (int32_t i = 0; i < size(); ++i) {
    forEachWritten(i, [&](int32_t storage) { written_[storage] = true; });
  }
}

void Numbering::define(const Value* value, int32_t node) {
  const size_t number = numberOf(value);
  if (number >= definedBy_.size()) {
    definedBy_.resize(number + 1, -1);
    storage_.resize(number + 1, -1);
  }
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
  const int32_t x = find(static_cast<int32_t>(numberOf(a)));
  const int32_t y = find(static_cast<int32_t>(numberOf(b)));
  if (x == y) return;
  // The value defined first is the root: an input of the entry before all others. Long chains of
  // views stay flat because each new view joins a root.
  const bool xFirst = definedBy_[x] != definedBy_[y] ? definedBy_[x] < definedBy_[y] : x < y;
  storage_[xFirst ? y : x] = xFirst ? x : y;
}

}  // namespace gravure
