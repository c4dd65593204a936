#include "passes/bind_rng_states.h"

#include "ir/core/args.h"
#include "ir/core/cudagraph_ops.h"
#include "tests/unit/pass_fixture.h"

#include "tests/catch.h"

using namespace gravure;
using namespace gravure::test;
using Catch::Matchers::Contains;

namespace {

const Node* nodeOf(const Block* block, const std::string& output) {
  for (const Node* node : block->nodes()) {
    for (const Value* value : node->outputs()) {
      if (value->debugName() == output) return node;
    }
    for (const Block* inner : node->blocks()) {
      if (const Node* found = nodeOf(inner, output)) return found;
    }
  }
  return nullptr;
}

/// Name of the random state of the node that defines `output`, "" if it has none.
std::string stateOf(const PassRun& run, const std::string& output) {
  const Node* node = nodeOf(run.program.entries.front().graph->block(), output);
  REQUIRE(node);
  const Value* state = rngStateOf(node);
  return state ? state->debugName() : "";
}

}  // namespace

TEST_CASE("nodes on the host and in partitions draw from one input for the default generator") {
  PassRun run(bindRngStates, verifyBindRngStates, R"(
  graph(%x : T {user_input "x"}):
    %a : T, %am : B = aten::native_dropout(%x, 0.5, True)
    %o : T = cudagraph::partition[index=0, tags=["static: host node"]](%a)
      block0(%a.p : T):
        %b : T, %bm : B = aten::native_dropout(%a.p, 0.5, True)
        %c : T, %cm : B = aten::native_dropout(%b, 0.5, True)
        -> (%c)
    %q : T = cudagraph::partition[index=1, tags=["static: partition 0"]](%o)
      block0(%o.p : T):
        %d : T = aten::relu(%o.p)
        -> (%d)
    return (%q {loss}))");
  const Entry& entry = run.program.entries.front();
  REQUIRE(entry.inputs.size() == 2);
  CHECK(entry.inputs[1] == InputInfo{InputRole::RngState, "cpu"});
  CHECK(entry.graph->inputs()[1]->debugName() == "rng.cpu");
  CHECK(stateOf(run, "a") == "rng.cpu");
  CHECK(stateOf(run, "b") == "rng.cpu.p0");
  CHECK(stateOf(run, "c") == "rng.cpu.p0");
  const Node* first = nodeOf(entry.graph->block(), "o");
  CHECK(first->inputs().size() == 2);
  CHECK(stringsAttr(first, attr::tags) ==
        std::vector<std::string>{"static: host node", "rng: cpu"});
  // A partition that draws nothing takes no state.
  CHECK(nodeOf(entry.graph->block(), "q")->inputs().size() == 1);
  CHECK(run.context.remarks.count("rng-state-bound") == 1);
}

TEST_CASE("what cannot draw is left alone") {
  PassRun run(bindRngStates, verifyBindRngStates, R"(
  graph(%x : T {user_input "x"}):
    %a : T, %am : B = aten::native_dropout(%x, 0.5, False)
    %b : T = aten::relu(%a)
    return (%b {loss}))");
  CHECK(run.program.entries.front().inputs.size() == 1);
  CHECK(stateOf(run, "a").empty());
}

TEST_CASE("paired states and saved states stay; the default input that is there is used") {
  PassRun run(bindRngStates, verifyBindRngStates, R"(
  graph(%x : T {user_input "x"}, %g : Generator {rng_state "cpu"}, %p : Generator {rng_state "cpu#1"},
        %s : Byte(5056, strides=[1], device=cpu) {saved "s"}):
    %a : T, %am : B = aten::native_dropout(%x, 0.5, True)
    %b : T, %bm : B = aten::native_dropout(%x, 0.5, True) rng(%p)
    %c : T, %cm : B = aten::native_dropout(%x, 0.5, True) rng(%s)
    return (%a {loss}, %b {output "b"}, %c {output "c"}))");
  CHECK(run.program.entries.front().inputs.size() == 4);
  CHECK(stateOf(run, "a") == "g");
  CHECK(stateOf(run, "b") == "p");
  CHECK(stateOf(run, "c") == "s");
}

TEST_CASE("each device has its own state, and each entry its own input") {
  PassRun run(bindRngStates, verifyBindRngStates, R"(
  graph forward(%x : G {user_input "x"}, %y : T {user_input "y"}):
    %a : G, %am : Bool(4, 4, strides=[4, 1], device=cuda:0) = aten::native_dropout(%x, 0.5, True)
    %b : T, %bm : B = aten::native_dropout(%y, 0.5, True)
    return (%a {loss}, %b {output "b"})
  graph backward(%x : G {user_input "x"}):
    %c : G, %cm : Bool(4, 4, strides=[4, 1], device=cuda:0) = aten::native_dropout(%x, 0.5, True)
    return (%c {loss}))");
  const Program& program = run.program;
  REQUIRE(program.entries[0].inputs.size() == 4);
  CHECK(program.entries[0].inputs[2] == InputInfo{InputRole::RngState, "cuda:0"});
  CHECK(program.entries[0].inputs[3] == InputInfo{InputRole::RngState, "cpu"});
  REQUIRE(program.entries[1].inputs.size() == 2);
  CHECK(program.entries[1].inputs[1] == InputInfo{InputRole::RngState, "cuda:0"});
}

TEST_CASE("a name that is taken is not taken away") {
  PassRun run(bindRngStates, verifyBindRngStates, R"(
  graph(%rng.cpu : T {user_input "x"}):
    %a : T, %am : B = aten::native_dropout(%rng.cpu, 0.5, True)
    return (%a {loss}))");
  CHECK(run.program.entries.front().graph->inputs()[0]->debugName() == "rng.cpu");
  CHECK(stateOf(run, "a") == "rng.cpu.2");
}

TEST_CASE("nodes in a branch are bound too") {
  PassRun run(bindRngStates, verifyBindRngStates, R"(
  graph(%x : T {user_input "x"}, %n : int {symint "n"}):
    %c : bool = aten::gt.int(%n, 3)
    %r : T = prim::If(%c)
      block0():
        %i : T, %im : B = aten::native_dropout(%x, 0.5, True)
        -> (%i)
      block1():
        -> (%x)
    return (%r {loss}))");
  CHECK(stateOf(run, "i") == "rng.cpu");
}

TEST_CASE("a saved state inside a partition is refused by name") {
  CHECK_THROWS_WITH(PassRun(bindRngStates, verifyBindRngStates, R"(
  graph(%x : T {user_input "x"}, %s : Byte(5056, strides=[1], device=cpu) {saved "s"}):
    %o : T = cudagraph::partition[index=3, tags=["staged: user input", "staged: saved value"]](%x, %s)
      block0(%x.p : T, %s.p : Byte(5056, strides=[1], device=cpu)):
        %a : T, %am : B = aten::native_dropout(%x.p, 0.5, True) rng(%s.p)
        -> (%a)
    return (%o {loss}))"),
                    Contains("%a") && Contains("partition 3") && Contains("%s.p"));
}

TEST_CASE("a partition without tags is refused") {
  CHECK_THROWS_WITH(PassRun(bindRngStates, verifyBindRngStates, R"(
  graph(%x : T {user_input "x"}):
    %o : T = cudagraph::partition[index=0](%x)
      block0(%x.p : T):
        %a : T, %am : B = aten::native_dropout(%x.p, 0.5, True)
        -> (%a)
    return (%o {loss}))"),
                    Contains("run tag-static-inputs first"));
}

TEST_CASE("verify refuses what draws unbound, and states that are no operand") {
  const auto verify = [](const std::string& text) {
    verifyBindRngStates(readProgram(expandTypes(text)), PassContext{});
  };
  CHECK_THROWS_WITH(verify(R"(graph(%x : T {user_input "x"}):
    %a : T, %am : B = aten::native_dropout(%x, 0.5, True)
    return (%a {loss}))"),
                    Contains("%a") && Contains("no random state"));
  CHECK_THROWS_WITH(verify(R"(graph(%x : T {user_input "x"}, %g : Generator {rng_state "cpu"}):
    %o : T = cudagraph::partition[index=0, tags=["staged: user input", "guarded: g"]](%x, %g)
      block0(%x.p : T, %g.p : Generator):
        %a : T, %am : B = aten::native_dropout(%x.p, 0.5, True) rng(%g.p)
        -> (%a)
    return (%o {loss}))"),
                    Contains("not tagged"));
  CHECK_THROWS_WITH(
      verify(R"(graph(%g : Generator {rng_state "cpu"}, %h : Generator {rng_state "cpu"}, %x : T):
    %a : T, %am : B = aten::native_dropout(%x, 0.5, True) rng(%g)
    return (%a {loss}))"),
      Contains("two inputs"));
}
