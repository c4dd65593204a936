#include "passes/partition_graph/partition_graph.h"

#include "ir/core/cudagraph_ops.h"
#include "passes/classify_capturability.h"
#include "passes/group_collectives.h"
#include "tests/catch.h"
#include "tests/unit/pass_fixture.h"

#include <llvm/Support/raw_ostream.h>

#include <functional>

namespace gravure {
namespace {

Program prepared(const std::string& text, PassContext& context) {
  Program program = readProgram(test::expandTypes(text));
  classifyCapturability(program, context);
  groupCollectives(program, context);
  return program;
}

PartitionPlan planOf(const std::string& text, PassContext& context) {
  const Program program = prepared(text, context);
  PartitionPlan plan = planPartitions(program.entries[0], context.options);
  CHECK(plan.verify(program.entries[0]) == "");
  return plan;
}

/// `blocks` times: a large result is made, summed, and read on the host together with its sum.
std::string largeResults(int blocks) {
  std::string text = "graph step(%x : Float(1024, strides=[1], device=cpu) {user_input \"x\"}):\n";
  for (int i = 0; i < blocks; ++i) {
    const std::string n = std::to_string(i);
    text += "  %a" + n + " : Float(1024, strides=[1], device=cpu) = aten::relu(%x)\n" + "  %s" + n +
            " : S = aten::sum(%a" + n + ")\n" + "  %n" + n +
            " : float = aten::_local_scalar_dense(%s" + n + ")\n" + "  %q" + n +
            " : bool = aten::equal(%a" + n + ", %x)\n";
  }
  return text + "  return (%n0 {output \"n\"})";
}

}  // namespace

TEST_CASE("plan: with memory to spare, independent work makes one partition") {
  PassContext context;
  context.options.memoryGrowth = 1e6;
  const PartitionPlan plan = planOf(largeResults(200), context);
  CHECK(plan.order == PartitionOrder::Levels);
  CHECK(plan.partitionCount() == 1);
  CHECK(plan.programOrderPartitions == 200);
  CHECK(plan.levelPeak == 200 * 4100);
  CHECK(plan.programOrderPeak == 4100);
}

TEST_CASE("plan: parts of the program bound the peak") {
  PassContext context;
  context.options.memorySlack = 0;
  context.options.memoryGrowth = 3.5;  // four results at once, not five
  const PartitionPlan plan = planOf(largeResults(100), context);
  CHECK(plan.order == PartitionOrder::Levels);
  CHECK(plan.levelParts == 32);
  CHECK(plan.levelPeak <= 4 * 4100 + 1000);
  CHECK(plan.partitionCount() < 40);
}

TEST_CASE("plan: levels are refused where no part is short enough, and the remark says so") {
  PassContext context;
  context.options.memorySlack = 0;
  context.options.memoryGrowth = 0.5;
  Program program = prepared(largeResults(200), context);
  partitionGraph(program, context);
  verifyPartitionGraph(program, context);
  REQUIRE(context.remarks.count("levels-refused") == 1);
  CHECK(context.remarks.count("partition-formed") == 200);
}

TEST_CASE("plan: bytes allowed beside the share let a small program be reordered") {
  PassContext context;
  context.options.memoryGrowth = 0;
  CHECK(planOf(largeResults(200), context).partitionCount() == 1);
  context.options.memorySlack = 199 * 4100;
  CHECK(planOf(largeResults(200), context).partitionCount() == 1);
  context.options.memorySlack = 199 * 4100 - 1;
  const PartitionPlan plan = planOf(largeResults(200), context);
  CHECK(plan.partitionCount() > 1);
  CHECK(plan.levelPeak <= 200 * 4100 - 1);
}

TEST_CASE("plan: an allowance beyond every address is none too many") {
  PassContext context;
  context.options.memoryGrowth = 1e300;
  context.options.memorySlack = INT64_MAX;
  CHECK(planOf(largeResults(3), context).partitionCount() == 1);
}

TEST_CASE("plan: the minimum size is that of the whole line of levels, and views do not count") {
  const std::string text = "graph step(%x : T {user_input \"x\"}):\n"
                           "  %a : T = aten::relu(%x)\n"
                           "  %t : C = aten::t(%a)\n"
                           "  %s : S = aten::sum(%t)\n"
                           "  %n : float = aten::_local_scalar_dense(%s)\n"
                           "  return (%n {output \"n\"})";
  PassContext context;
  context.options.minPartitionSize = 2;
  CHECK(planOf(text, context).partitionCount() == 1);
  context.options.minPartitionSize = 3;
  const PartitionPlan plan = planOf(text, context);
  CHECK(plan.partitionCount() == 0);
  CHECK(plan.sections.size() == 1);
  CHECK(plan.keptOnHost.size() == 3);
}

TEST_CASE("plan: a partition of views alone is none, whatever the minimum") {
  PassContext context;
  context.options.minPartitionSize = 0;
  const PartitionPlan plan = planOf("graph step(%x : T {user_input \"x\"}):\n"
                                    "  %t : C = aten::t(%x)\n  return (%t {alias %x})",
                                    context);
  CHECK(plan.partitionCount() == 0);
}

TEST_CASE("plan: an empty entry has an empty plan") {
  PassContext context;
  Program program =
      prepared("graph step(%x : T {user_input \"x\"}):\n  return (%x {alias %x})", context);
  CHECK(planPartitions(program.entries[0], context.options).sections.empty());
  partitionGraph(program, context);
  verifyPartitionGraph(program, context);
}

TEST_CASE("plan: prints what it decided") {
  PassContext context;
  std::string text;
  llvm::raw_string_ostream os(text);
  const Program program = prepared(largeResults(1), context);
  planPartitions(program.entries[0], context.options).print(os);
  CHECK(os.str() == "order: levels\n"
                    "levels: 1 partition in 2 sections, peak 0.00 MiB\n"
                    "program order: 1 partition in 2 sections, peak 0.00 MiB\n"
                    "partition 0: 2 nodes, %a0 = aten::relu to %s0 = aten::sum\n"
                    "  in (1): %x\n"
                    "  out (2): %a0 %s0\n"
                    "host: 2 nodes, %n0 = aten::_local_scalar_dense to %q0 = aten::equal\n"
                    "  in (3): %s0 %a0 %x\n"
                    "  out (1): %n0\n");
}

TEST_CASE("partition: a value used by many partitions gets to each through its own parameter") {
  // A parameter read in 50 partitions and on the host between them; draws keep them apart.
  std::string text = "graph step(%x : G {user_input \"x\"}, %d : Float(*, strides=[1], "
                     "device=cuda:0) {user_input \"d\"}):\n";
  for (int i = 0; i < 50; ++i) {
    const std::string n = std::to_string(i);
    text += "  %a" + n + " : G = aten::bernoulli.p(%x, 0.5)\n  %b" + n +
            " : G = aten::mul.Tensor(%a" + n + ", %x)\n  %h" + n +
            " : Float(*, strides=[1], device=cuda:0) = aten::bernoulli.p(%d, 0.5)\n  %e" + n +
            " : bool = aten::equal(%x, %b" + n + ")\n";
  }
  PassContext context;
  Program program = prepared(text + "  return (%b0 {output \"b\"})", context);
  partitionGraph(program, context);
  verifyPartitionGraph(program, context);
  const Value* x = program.entries[0].graph->inputs()[0];
  size_t partitions = 0, host = 0;
  for (const auto& use : x->uses()) ++(isPartition(use.user) ? partitions : host);
  CHECK(partitions == 50);
  CHECK(host == 50);
}

TEST_CASE("partition: numbers go on from entry to entry") {
  PassContext context;
  context.options.minPartitionSize = 1;
  Program program = prepared("graph forward(%x : T {user_input \"x\"}):\n"
                             "  %a : T = aten::relu(%x)\n  return (%a {output \"a\"})\n"
                             "graph backward(%t : T {tangent \"t\"}):\n"
                             "  %b : T = aten::relu(%t)\n  return (%b {output \"b\"})",
                             context);
  partitionGraph(program, context);
  verifyPartitionGraph(program, context);
  CHECK(partitionIndex(*program.entries[1].graph->nodes().begin()) == 1);
  CHECK(programText(program).find("%t.p1") != std::string::npos);
}

TEST_CASE("partition: the verifier sees what a wrong rewrite leaves") {
  const auto fresh = [](PassContext& context) {
    Program program = prepared("graph step(%x : T {user_input \"x\"}, %y : T {user_input \"y\"}):\n"
                               "  %a : T = aten::relu(%x)\n"
                               "  %b : T = aten::mul.Tensor(%a, %y)\n"
                               "  %s : S = aten::sum(%b)\n"
                               "  %n : float = aten::_local_scalar_dense(%s)\n"
                               "  return (%b {output \"b\"}, %n {output \"n\"})",
                               context);
    partitionGraph(program, context);
    return program;
  };
  const auto refuses = [&](const char* what, const std::function<void(Graph&, Node*)>& damage) {
    PassContext context;
    Program program = fresh(context);
    Graph& graph = *program.entries[0].graph;
    damage(graph, *graph.nodes().begin());
    CHECK_THROWS_WITH(verifyPartitionGraph(program, context), Catch::Contains(what));
  };
  refuses("which is not among its parameters", [](Graph& graph, Node* partition) {
    (*partition->blocks()[0]->nodes().begin())->replaceInput(0, graph.inputs()[0]);
  });
  refuses("which stands inside a partition", [](Graph&, Node* partition) {
    partition->next()->replaceInput(0, partition->blocks()[0]->outputs()[1]);
  });
  refuses("must have the index", [](Graph&, Node* partition) { partition->i_(attr::index, 3); });
  refuses("takes %x twice",
          [](Graph& graph, Node* partition) { partition->replaceInput(1, graph.inputs()[0]); });
  refuses("must have one parameter",
          [](Graph& graph, Node* partition) { partition->addInput(graph.inputs()[0]); });
  refuses("differ in type",
          [](Graph&, Node* partition) { partition->output(0)->setType(c10::IntType::get()); });
  refuses("must run on the host and stands in partition", [](Graph&, Node* partition) {
    setHostReason(*partition->blocks()[0]->nodes().begin(), HostReason::HostSync);
  });
  refuses("has no host reason and stands in no partition",
          [](Graph&, Node* partition) { partition->next()->removeAttribute(attr::host); });
  refuses("shares fate 0", [](Graph&, Node* partition) {
    (*partition->blocks()[0]->nodes().begin())->i_(attr::fate, 0);
    partition->next()->i_(attr::fate, 0);
  });
}

}  // namespace gravure
