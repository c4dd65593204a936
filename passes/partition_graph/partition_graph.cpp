#include "passes/partition_graph/partition_graph.h"

#include "ir/core/counted.h"
#include "ir/core/cudagraph_ops.h"
#include "ir/facts/op_facts.h"
#include "passes/partition_graph/partition_rewrite.h"

#include <llvm/ADT/DenseSet.h>

#include <unordered_map>

namespace gravure {
namespace {

constexpr const char* kPass = "partition-graph";

std::string planSummary(const PartitionPlan& plan) {
  const bool levels = plan.order == PartitionOrder::Levels;
  const std::string parts = levels && plan.levelParts > 1
                                ? " of " + counted(plan.levelParts, "part") + " of the program"
                                : "";
  return counted(plan.partitionCount(), "partition") + " in " +
         counted(plan.sections.size(), "section") + " by " + (levels ? "levels" : "program order") +
         parts + "; program order gives " + std::to_string(plan.programOrderPartitions) + " in " +
         std::to_string(plan.programOrderSections) + " with a planned peak of " +
         std::to_string(plan.programOrderPeak) + " bytes, levels " +
         std::to_string(plan.levelPartitions) + " in " + std::to_string(plan.levelSections) +
         " with " + std::to_string(plan.levelPeak);
}

std::string keptMessage(HostReason reason, int64_t minimum) {
  if (reason == HostReason::TooSmall) {
    return "its partition would hold fewer than " + counted(minimum, "operator call");
  }
  return "program order cuts between its collective and what touches the buffers";
}

void remark(const Entry& entry, const PartitionPlan& plan, int64_t firstIndex,
            PassContext& context) {
  Remarks& remarks = context.remarks;
  remarks.add(RemarkKind::Analysis, kPass, "partition-plan",
              "entry '" + entry.name + "': " + planSummary(plan));
  if (!plan.levelsRefused.empty()) {
    remarks.add(RemarkKind::Missed, kPass, "levels-refused",
                "entry '" + entry.name + "' keeps program order: " + plan.levelsRefused);
  }
  for (const PlannedHost& kept : plan.keptOnHost) {
    remarks.add(RemarkKind::Missed, kPass, reasonName(kept.reason), kept.node,
                keptMessage(kept.reason, context.options.minPartitionSize));
  }
  for (const PlannedSection& section : plan.sections) {
    if (!section.captured) continue;
    remarks.add(RemarkKind::Passed, kPass, "partition-formed", section.nodes.front(),
                "partition " + std::to_string(firstIndex + section.index) + " holds " +
                    counted(section.nodes.size(), "node") + ", takes " +
                    counted(section.inputs.size(), "value") + " and gives " +
                    std::to_string(section.outputs.size()));
  }
}

void markKept(const PartitionPlan& plan) {
  for (const PlannedHost& kept : plan.keptOnHost) setHostReason(kept.node, kept.reason);
}

/// Sections that may not be captured become host sections, as if the user had named their nodes: the last ones,
/// so that indices stay dense. False if the order of the entry may not change either.
bool limitPlan(const Entry& entry, PartitionPlan& plan, RewriteLimit& rewrites) {
  const std::string order = "order of entry '" + entry.name + "'";
  const bool reorders = rewrites.next(kPass, order.c_str(), nullptr);
  for (PlannedSection& section : plan.sections) {
    if (!section.captured) continue;
    if (reorders && rewrites.next(kPass, "partition from", section.nodes.front())) continue;
    section.captured = false;
    for (Node* node : section.nodes) setHostReason(node, HostReason::UserRequest);
  }
  return reorders;
}

/// What the verifier knows of one entry.
class RewriteChecker {
 public:
  RewriteChecker(const Entry& entry, int64_t& index) : entry_(entry), index_(index) {}

  void check() {
    for (const Node* node : entry_.graph->nodes()) {
      if (isPartition(node)) {
        checkPartition(node);
      } else {
        const bool host = hostReasonOf(node) || factsOf(node).numbersOnly;
        TORCH_CHECK(host, where(node), " has no host reason and stands in no partition");
        checkFate(node, -1);
      }
      for (const Value* input : node->inputs()) needOutside(input, where(node));
    }
    for (const Value* result : entry_.graph->outputs()) {
      needOutside(result, "entry '" + entry_.name + "'");
    }
  }

 private:
  std::string where(const Node* node) const {
    return "entry '" + entry_.name + "': " + describe(node);
  }

  void needOutside(const Value* value, const std::string& who) const {
    TORCH_CHECK(value->node()->owningBlock() == entry_.graph->block(), who, " uses %",
                value->debugName(), ", which stands inside a partition");
  }

  void checkPartition(const Node* node) {
    TORCH_CHECK(node->blocks().size() == 1, where(node), " must have one block");
    TORCH_CHECK(node->hasAttribute(attr::index) && partitionIndex(node) == index_, where(node),
                " must have the index ", index_);
    const Block* block = node->blocks().front();
    checkBoundary(node, block->inputs(), node->inputs(), "parameter");
    checkBoundary(node, block->outputs(), node->outputs(), "result");
    llvm::DenseSet<const Value*> seen, visible;
    for (const Value* operand : node->inputs()) {
      TORCH_CHECK(seen.insert(operand).second, where(node), " takes %", operand->debugName(),
                  " twice");
    }
    for (const Value* parameter : block->inputs()) visible.insert(parameter);
    const auto need = [&](const Value* value) {
      TORCH_CHECK(visible.contains(value), where(node), ": its block uses %", value->debugName(),
                  ", which is not among its parameters");
    };
    bool calls = false;
    for (const Node* inner : block->nodes()) {
      calls = true;
      TORCH_CHECK(!hostReasonOf(inner) && !factsOf(inner).numbersOnly && inner->blocks().empty(),
                  where(inner), " must run on the host and stands in partition ", index_);
      checkFate(inner, index_);
      for (const Value* input : inner->inputs()) need(input);
      for (const Value* output : inner->outputs()) visible.insert(output);
    }
    for (const Value* result : block->outputs()) need(result);
    TORCH_CHECK(calls, where(node), " is empty");
    ++index_;
  }

  template <typename Inner, typename Outer>
  void checkBoundary(const Node* node, const Inner& inner, const Outer& outer,
                     const char* what) const {
    TORCH_CHECK(inner.size() == outer.size(), where(node), " must have one ", what,
                " for each of its ", outer.size(), ", and has ", inner.size());
    for (size_t i = 0; i < inner.size(); ++i) {
      TORCH_CHECK(inner[i]->type() == outer[i]->type() || *inner[i]->type() == *outer[i]->type(),
                  where(node), ": ", what, " %", inner[i]->debugName(), " and %",
                  outer[i]->debugName(), " differ in type");
    }
  }

  /// `home`: the partition that `node` stands in, -1 for the host.
  void checkFate(const Node* node, int64_t home) {
    const auto fate = fateOf(node);
    if (!fate) return;
    const auto [at, isNew] = homes_.try_emplace(*fate, home);
    TORCH_CHECK(isNew || at->second == home, where(node), " shares fate ", *fate,
                " with a node elsewhere");
  }

  const Entry& entry_;
  int64_t& index_;
  std::unordered_map<int64_t, int64_t> homes_;  // by fate, which a text may number as it likes
};

}  // namespace

void applyPlan(Entry& entry, const PartitionPlan& plan, int64_t firstIndex) {
  markKept(plan);
  PartitionRewriter(*entry.graph, plan, firstIndex).run();
}

void partitionGraph(Program& program, PassContext& context) {
  int64_t index = 0;
  std::vector<PartitionPlan> plans;
  for (Entry& entry : program.entries) {
    PartitionPlan& plan =
        plans.emplace_back(planPartitions(entry, context.options, context.analyses));
    const std::string clash = context.verify ? plan.verify(entry) : "";
    TORCH_INTERNAL_ASSERT(clash.empty(), "partition plan of entry '", entry.name, "': ", clash);
    const bool reorders = limitPlan(entry, plan, context.rewrites);
    remark(entry, plan, index, context);
    if (reorders) {
      context.analyses.forget(entry);
      applyPlan(entry, plan, index);
    } else {
      markKept(plan);
    }
    index += plan.partitionCount();
  }
  context.partitionPlans = std::make_shared<const std::vector<PartitionPlan>>(std::move(plans));
}

void verifyPartitionGraph(const Program& program, const PassContext&) {
  int64_t index = 0;
  for (const Entry& entry : program.entries) RewriteChecker(entry, index).check();
}

}  // namespace gravure
