#include "passes/partition_graph/partition_rewrite.h"

#include "ir/core/cudagraph_ops.h"
#include "ir/core/fresh_name.h"

#include <numeric>

namespace gravure {

PartitionRewriter::PartitionRewriter(Graph& graph, const PartitionPlan& plan, int64_t firstIndex)
    : graph_(graph), plan_(plan), firstIndex_(firstIndex) {
  for (const PlannedSection& section : plan.sections) {
    if (section.captured) captured_.push_back(&section);
  }
}

void PartitionRewriter::run() {
  moveNodes();
  makeResults();
  makeParameters();
  connectOperands();
}

/// Every node is taken out of the top block and put back at its end, or at the end of a partition, once.
void PartitionRewriter::moveNodes() {
  for (const PlannedSection& section : plan_.sections) {
    Block* home = graph_.block();
    if (section.captured) {
      Node* partition = graph_.create(cg::partition, 0)->insertBefore(graph_.return_node());
      partition->i_(attr::index, firstIndex_ + section.index);
      partitions_.push_back(partition);
      home = partition->addBlock();
    }
    for (Node* node : section.nodes) node->moveBefore(home->return_node());
  }
}

void PartitionRewriter::makeResults() {
  for (size_t p = 0; p < partitions_.size(); ++p) {
    Node* partition = partitions_[p];
    for (Value* inner : captured_[p]->outputs) {
      Value* result = partition->addOutput();
      result->setType(inner->type());
      nameAfter(result, inner, ".out");
      inner->replaceAllUsesAfterNodeWith(partition, result);
      partition->blocks()[0]->registerOutput(inner);
      if (inner->unique() >= outer_.size()) outer_.resize(inner->unique() + 1, nullptr);
      outer_[inner->unique()] = result;
    }
  }
}

Value* PartitionRewriter::outerOf(Value* value) const {
  Value* outer = value->unique() < outer_.size() ? outer_[value->unique()] : nullptr;
  return outer ? outer : value;
}

void PartitionRewriter::makeParameters() {
  std::vector<Value*> values;     // that enter a partition, by first entrance
  std::vector<int32_t> indexIn;   // by value: its index in `values`, -1 for none
  std::vector<Entrance> in;       // in the order of partitions
  std::vector<int32_t> entering;  // of each entrance: index of the value that enters
  for (size_t p = 0; p < partitions_.size(); ++p) {
    const std::string ending = ".p" + std::to_string(firstIndex_ + captured_[p]->index);
    for (Value* used : captured_[p]->inputs) {
      Value* value = outerOf(used);
      Value* parameter = partitions_[p]->blocks()[0]->addInput();
      parameter->setType(value->type());
      nameAfter(parameter, value, ending);
      if (value->unique() >= indexIn.size()) indexIn.resize(value->unique() + 1, -1);
      int32_t& index = indexIn[value->unique()];
      if (index < 0) {
        index = static_cast<int32_t>(values.size());
        values.push_back(value);
      }
      in.push_back({partitions_[p], parameter});
      entering.push_back(index);
    }
  }
  // The entrances of each value next to one another, those of one value still in order.
  std::vector<int32_t> next(values.size() + 1, 0);
  for (int32_t index : entering) ++next[index + 1];
  std::partial_sum(next.begin(), next.end(), next.begin());
  std::vector<Entrance> sorted(in.size());
  for (size_t i = 0; i < in.size(); ++i) sorted[next[entering[i]]++] = in[i];
  int32_t begin = 0;
  for (size_t index = 0; index < values.size(); ++index) {
    const int32_t end = next[index];
    routeUses(values[index], llvm::ArrayRef<Entrance>(sorted).slice(begin, end - begin));
    begin = end;
  }
}

/// Gives the uses in each partition to its parameter. Many partitions are split in halves first, so
/// that each use is looked at only a few times.
void PartitionRewriter::routeUses(Value* value, llvm::ArrayRef<Entrance> entrances) {
  constexpr size_t kFew = 4;
  if (entrances.size() <= kFew) {
    for (const Entrance& entrance : entrances) {
      const Node* begin = entrance.partition->blocks()[0]->param_node();
      value->replaceAllUsesDominatedByNodeWith(begin, entrance.parameter);
    }
    return;
  }
  const size_t half = entrances.size() / 2;
  Node* holder = graph_.create(c10::prim::Uninitialized, 1);
  value->replaceAllUsesAfterNodeWith(entrances[half - 1].partition, holder->output());
  routeUses(value, entrances.take_front(half));
  routeUses(holder->output(), entrances.drop_front(half));
  // What is left are uses on the host.
  holder->output()->replaceAllUsesWith(value);
  holder->destroy();
}

void PartitionRewriter::connectOperands() {
  for (size_t p = 0; p < partitions_.size(); ++p) {
    for (Value* used : captured_[p]->inputs) partitions_[p]->addInput(outerOf(used));
  }
}

}  // namespace gravure
