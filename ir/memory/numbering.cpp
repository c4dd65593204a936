#include "ir/memory/numbering.h"

#include "ir/core/cudagraph_ops.h"
#include "ir/facts/value_types.h"

namespace gravure {

Numbering::Numbering(const Entry& entry, Partitions partitions) : graph_(entry.graph.get()) {
  for (const Value* input : entry.graph->inputs()) define(input, -1);
  for (Node* node : entry.graph->nodes()) add(node, partitions);
  usedBegin_.push_back(static_cast<int32_t>(used_.size()));
  resultsBegin_.push_back(static_cast<int32_t>(results_.size()));
}

void Numbering::add(Node* node, Partitions partitions) {
  if (partitions == Partitions::Entered && isPartition(node)) {
    entered_.emplace_back(node, size());
    const Block* block = node->blocks().at(0);
    for (const Value* parameter : block->inputs()) define(parameter, -1);
    for (Node* inner : const_cast<Block*>(block)->nodes()) add(inner, partitions);
    for (const Value* output : node->outputs()) define(output, -1);
    return;
  }
  nodes_.push_back(node);
  facts_.push_back(&factsOf(node));
  nested_.push_back(!node->blocks().empty());
  addEdges(node);
  defineOutputs(node, size() - 1);
}

void Numbering::addEdges(const Node* node) {
  usedBegin_.push_back(static_cast<int32_t>(used_.size()));
  resultsBegin_.push_back(static_cast<int32_t>(results_.size()));
  for (const Value* output : node->outputs()) results_.push_back(indexOf(output));
  const auto use = [&](const Value* value) { used_.push_back(indexOf(value)); };
  const auto visit = [&](const Node* inner) {
    for (const Value* input : inner->inputs()) use(input);
    for (const Block* block : inner->blocks()) {
      for (const Value* result : block->outputs()) use(result);
    }
  };
  forEachNode(node, visit);
}

void Numbering::define(const Value* value, int32_t node) {
  const auto index = static_cast<size_t>(indexOf(value));
  if (index >= definedBy_.size()) {
    values_.resize(index + 1, nullptr);
    definedBy_.resize(index + 1, -1);
    tensorOf_.resize(index + 1, -1);
  }
  values_[index] = const_cast<Value*>(value);
  definedBy_[index] = node;
  if (!isTensorValue(value)) return;
  tensorOf_[index] = tensorCount();
  tensors_.push_back(static_cast<int32_t>(index));
}

void Numbering::defineOutputs(const Node* node, int32_t index) {
  for (const Block* block : node->blocks()) {
    for (const Value* parameter : block->inputs()) define(parameter, index);
    for (const Node* inner : block->nodes()) defineOutputs(inner, index);
  }
  for (const Value* output : node->outputs()) define(output, index);
}

}  // namespace gravure
