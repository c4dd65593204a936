#include "passes/emit_runtime_calls.h"

#include "ir/check/verify.h"
#include "ir/core/cudagraph_ops.h"
#include "passes/plan_memory.h"
#include "tests/unit/pass_fixture.h"

#include "tests/catch.h"

using namespace gravure;
using namespace gravure::test;
using Catch::Matchers::Contains;

namespace {

std::vector<const Node*> nodesOf(const Entry& entry, c10::Symbol kind) {
  std::vector<const Node*> found;
  for (const Node* node : entry.graph->nodes()) {
    if (node->kind() == kind) found.push_back(node);
  }
  return found;
}

template <typename Values>
std::vector<std::string> names(const Values& values) {
  std::vector<std::string> all;
  for (const Value* value : values) all.push_back(value->debugName());
  return all;
}

using Names = std::vector<std::string>;

PassRun emitted(const std::string& text) {
  return PassRun(emitRuntimeCalls, verifyEmitRuntimeCalls, text);
}

}  // namespace

TEST_CASE("staged inputs are copied once, at the top, in the order of the entry") {
  const PassRun run = emitted(R"(
  graph(%x : T {user_input "x"}, %w : T {parameter "w"}, %y : T {user_input "y"}):
    %h : T = aten::relu(%x)
    %a : T = cudagraph::partition[index=0, tags=["staged: user input", "static: parameter"]](%y, %w)
      block0(%y.p : T, %w.p : T):
        %a1 : T = aten::add.Tensor(%y.p, %w.p)
        -> (%a1)
    %b : T = cudagraph::partition[index=1, tags=["staged: user input", "staged: user input", "static: partition 0"]](%x, %y, %a)
      block0(%x.p1 : T, %y.p1 : T, %a.p1 : T):
        %b1 : T = aten::add.Tensor(%x.p1, %y.p1)
        %b2 : T = aten::add.Tensor(%b1, %a.p1)
        -> (%b2)
    return (%b {loss}, %h {output "h"}))");
  const Entry& entry = run.program.entries.front();
  const auto stages = nodesOf(entry, cg::stage);
  REQUIRE(stages.size() == 1);
  CHECK(*entry.graph->nodes().begin() == stages[0]);
  CHECK(names(stages[0]->inputs()) == Names{"x", "y"});
  CHECK(names(stages[0]->outputs()) == Names{"x.staged", "y.staged"});
  const auto launches = nodesOf(entry, cg::launch);
  REQUIRE(launches.size() == 2);
  CHECK(nodesOf(entry, cg::partition).empty());
  CHECK(names(launches[0]->inputs()) == Names{"y.staged", "w"});
  CHECK(names(launches[1]->inputs()) == Names{"x.staged", "y.staged", "a"});
  CHECK(partitionIndex(launches[1]) == 1);
  CHECK(tagsOf(launches[0])[1] == OperandTag{OperandKind::Static, "parameter"});
  // The block came over whole, with its names; host nodes read the caller's own tensor.
  const Block* block = launches[0]->blocks().at(0);
  CHECK(names(block->inputs()) == Names{"y.p", "w.p"});
  CHECK(names(block->outputs()) == Names{"a1"});
  CHECK(block->inputs()[0]->node()->owningBlock() == block);
  CHECK(names(nodesOf(entry, c10::aten::relu).at(0)->inputs()) == Names{"x"});
  CHECK_NOTHROW(verifyProgram(run.program));
  CHECK_NOTHROW(entry.graph->lint());
}

TEST_CASE("what is staged and no input is copied right before the partition that takes it first") {
  const PassRun run = emitted(R"(
  graph(%x : T {user_input "x"}):
    %v : C = aten::t(%x)
    %h : T = aten::relu(%x)
    %a : T = cudagraph::partition[index=0, tags=["staged: view of user input", "static: host node"]](%v, %h)
      block0(%v.p : C, %h.p : T):
        %a1 : T = aten::add.Tensor(%h.p, %v.p)
        -> (%a1)
    %b : T = cudagraph::partition[index=1, tags=["staged: view of user input"]](%v)
      block0(%v.p1 : C):
        %b1 : T = aten::clone(%v.p1)
        -> (%b1)
    return (%a {loss}, %b {output "b"}))");
  const Entry& entry = run.program.entries.front();
  const auto stages = nodesOf(entry, cg::stage);
  REQUIRE(stages.size() == 1);
  CHECK(names(stages[0]->inputs()) == Names{"v"});
  const auto launches = nodesOf(entry, cg::launch);
  CHECK(stages[0]->next() == launches[0]);
  CHECK(names(launches[1]->inputs()) == Names{"v.staged"});
}

TEST_CASE("results are moved out once each; what is the caller's or lent is not") {
  const PassRun run = emitted(R"(
  graph forward(%w : T {parameter "w"}, %x : T {user_input "x"}, %b : T {buffer "b"}, %n : int {symint "n"}):
    %a : T = aten::relu(%x)
    %v : C = aten::t(%x)
    %u : T = aten::mul_.Scalar(%b, 2.)
    %m : int = aten::add.int(%n, 1)
    %s : T = aten::relu(%a)
    %lost : T = aten::relu(%s)
    return (%a {loss}, %a {output "again"}, %w {output "w"}, %v {alias %x}, %u {mutation %b}, %m {output "m"},
            %s {saved "s"}, %lost {saved "lost"})
  graph backward(%s : T {saved "s"}):
    %g : T = aten::relu(%s)
    return (%g {gradient "w"}))");
  const Entry& forward = run.program.entries[0];
  const auto owns = nodesOf(forward, cg::own);
  REQUIRE(owns.size() == 1);
  CHECK(owns[0]->next() == forward.graph->return_node());
  CHECK(names(owns[0]->inputs()) == Names{"a", "lost"});
  CHECK(names(forward.graph->outputs()) ==
        Names{"a.own", "a.own", "w", "v", "u", "m", "s", "lost.own"});
  CHECK(names(run.program.entries[1].graph->outputs()) == Names{"g.own"});
}

TEST_CASE("results of another device stay as they are") {
  const PassRun run = emitted(R"(
  graph(%w : G {parameter "w"}, %x : T {user_input "x"}):
    %a : G = aten::relu(%w)
    %b : T = aten::relu(%x)
    return (%a {loss}, %b {output "b"}))");
  CHECK(names(run.program.entries[0].graph->outputs()) == Names{"a.own", "b"});
}

TEST_CASE("new names take none away") {
  const PassRun run = emitted(R"(
  graph(%x : T {user_input "x"}):
    %x.staged : T = aten::relu(%x)
    %a.own : T = aten::relu(%x.staged)
    %a : T = cudagraph::partition[index=0, tags=["staged: user input"]](%x)
      block0(%x.p : T):
        %a1 : T = aten::relu(%x.p)
        -> (%a1)
    return (%a {loss}, %a.own {output "b"}))");
  CHECK(names(run.program.entries[0].graph->outputs()) == Names{"a.own.2", "a.own.own"});
  CHECK(names(nodesOf(run.program.entries[0], cg::stage).at(0)->outputs()) == Names{"x.staged.2"});
}

TEST_CASE("the plan of plan-memory holds after emission, staged copies included") {
  PassRun run(planMemory, verifyPlanMemory, R"(
  graph(%x : T {user_input "x"}, %y : T {user_input "y"}):
    %a : T = cudagraph::partition[index=0, tags=["staged: user input", "staged: user input"]](%x, %y)
      block0(%x.p : T, %y.p : T):
        %a1 : T = aten::add.Tensor(%x.p, %y.p)
        %a2 : T = aten::relu(%a1)
        -> (%a2)
    return (%a {loss}))");
  const int64_t before = writtenPlan(run.program, run.context.options).bytes;
  emitRuntimeCalls(run.program, run.context);
  verifyEmitRuntimeCalls(run.program, run.context);
  const MemoryPlan plan = writtenPlan(run.program, run.context.options);
  CHECK(plan.bytes == before);
  CHECK(plan.buffers.size() == 4);
  const Node* stage = nodesOf(run.program.entries[0], cg::stage).at(0);
  CHECK(intsAttr(stage, attr::arena).size() == 2);
  CHECK_FALSE(nodesOf(run.program.entries[0], cg::launch).at(0)->hasAttribute(attr::staging));
}

TEST_CASE("a partition without tags is refused") {
  CHECK_THROWS_WITH(emitted(R"(
  graph(%x : T {user_input "x"}):
    %a : T = cudagraph::partition[index=2](%x)
      block0(%x.p : T):
        %a1 : T = aten::relu(%x.p)
        -> (%a1)
    return (%a {loss}))"),
                    Contains("partition 2") && Contains("run tag-static-inputs first"));
}

TEST_CASE("verify refuses what emission must not leave") {
  const auto verify = [](const std::string& text) {
    verifyEmitRuntimeCalls(readProgram(expandTypes(text)), PassContext{});
  };
  const std::string block = R"(
      block0(%x.p : T):
        %a1 : T = aten::relu(%x.p)
        -> (%a1)
)";
  const std::string end = "    %r : T = cudagraph::own(%a)\n    return (%r {loss})";
  const std::string head = "graph(%x : T {user_input \"x\"}):\n";
  CHECK_NOTHROW(
      verify(head +
             "    %s : T = cudagraph::stage(%x)\n"
             "    %a : T = cudagraph::launch[index=0, tags=[\"staged: user input\"]](%s)" +
             block + end));
  CHECK_THROWS_WITH(
      verify(head + "    %a : T = cudagraph::launch[index=0, tags=[\"staged: user input\"]](%x)" +
             block + end),
      Contains("is not copied"));
  CHECK_THROWS_WITH(
      verify(head +
             "    %s : T = cudagraph::stage(%x)\n"
             "    %a : T = cudagraph::launch[index=0, tags=[\"static: parameter\"]](%s)" +
             block + end),
      Contains("comes from a copy"));
  CHECK_THROWS_WITH(verify(head +
                           "    %a : T = cudagraph::partition[index=0, tags=[\"static: x\"]](%x)" +
                           block + end),
                    Contains("is left"));
  CHECK_THROWS_WITH(verify(head + "    %a : T = aten::relu(%x)\n    return (%a {loss})"),
                    Contains("%a") && Contains("next step overwrites it"));
}
