#include "passes/tag_static_inputs.h"

#include "ir/core/cudagraph_ops.h"
#include "ir/text/program_text.h"
#include "tests/unit/pass_fixture.h"

#include "tests/catch.h"

using namespace gravure;
using namespace gravure::test;
using Catch::Matchers::Contains;

namespace {

/// Tags of partition `index`, joined.
std::string tags(const Program& program, int64_t index) {
  for (const Entry& entry : program.entries) {
    for (const Node* node : entry.graph->nodes()) {
      if (!isPartition(node) || partitionIndex(node) != index) continue;
      std::string text;
      for (const std::string& tag : stringsAttr(node, attr::tags))
        text += (text.empty() ? "" : ", ") + tag;
      return text;
    }
  }
  return "no such partition";
}

const char* const kBlock = R"(
      block0(%a : T):
        %y : T = aten::relu(%a)
        %z : T = aten::relu(%y)
        -> (%z)
)";

}  // namespace

TEST_CASE("inputs are tagged by their roles") {
  PassRun run(tagStaticInputs, verifyTagStaticInputs, R"(
  graph(%w : T {parameter "w"}, %b : T {buffer "b"}, %c : T {constant "c"}, %x : T {user_input "x"},
        %n : T, %s : int {symint "s0"}, %g : Generator {rng_state "cpu#1"}):
    %o : T = cudagraph::partition[index=0](%w, %b, %c, %x, %n, %s, %g)
      block0(%w.p : T, %b.p : T, %c.p : T, %x.p : T, %n.p : T, %s.p : int, %g.p : Generator):
        %1 : T = aten::add.Tensor(%w.p, %b.p, alpha=%s.p)
        %2 : T = aten::add.Tensor(%c.p, %x.p)
        %3 : T = aten::add.Tensor(%1, %2)
        %4 : T = aten::add.Tensor(%3, %n.p)
        %5 : T, %6 : B = aten::native_dropout(%4, 0.5, True) rng(%g.p)
        -> (%5)
    return (%o {loss}))");
  CHECK(tags(run.program, 0) ==
        "static: parameter, static: buffer, static: constant, staged: user input, "
        "staged: user input, guarded: s0, rng: cpu#1");
  CHECK(run.context.remarks.all().empty());
}

TEST_CASE("results of partitions and host nodes are static; views of what moves are not") {
  PassRun run(tagStaticInputs, verifyTagStaticInputs, R"(
  graph(%w : T {parameter "w"}, %x : T {user_input "x"}):
    %h : T = aten::relu(%x)
    %xv : C = aten::t(%x)
    %wv : C = aten::t(%w)
    %o : T = cudagraph::partition[index=0](%h, %xv, %wv)
      block0(%h.p : T, %xv.p : C, %wv.p : C):
        %1 : T = aten::add.Tensor(%h.p, %xv.p)
        %2 : T = aten::add.Tensor(%1, %wv.p)
        -> (%2)
    %q : T = cudagraph::partition[index=1](%o)
      block0(%o.p : T):
        %3 : T = aten::relu(%o.p)
        -> (%3)
    return (%q {loss}))");
  CHECK(tags(run.program, 0) ==
        "static: host node, staged: view of user input, static: view of parameter");
  CHECK(tags(run.program, 1) == "static: partition 0");
  CHECK(run.context.remarks.count("operand-staged") == 1);
}

TEST_CASE("a user input that the program writes to is never staged") {
  PassRun run(tagStaticInputs, verifyTagStaticInputs, R"(
  graph(%x : T {user_input "x"}, %y : T {user_input "y"}):
    %o : T, %m : T = cudagraph::partition[index=0](%x, %y)
      block0(%x.p : T, %y.p : T):
        %v : C = aten::t(%x.p)
        %w : C = aten::mul_.Scalar(%v, 2.)
        %1 : T = aten::add.Tensor(%x.p, %y.p)
        -> (%1, %x.p)
    return (%o {loss}, %m {mutation %x}))");
  CHECK(tags(run.program, 0) == "static: mutated user input, staged: user input");
  CHECK(run.context.remarks.count("input-in-place") == 1);
}

TEST_CASE("a write on the host, after the partition, counts too") {
  PassRun run(tagStaticInputs, verifyTagStaticInputs, R"(
  graph(%x : T {user_input "x"}):
    %o : T = cudagraph::partition[index=0](%x)
      block0(%x.p : T):
        %1 : T = aten::relu(%x.p)
        -> (%1)
    %m : T = aten::mul_.Scalar(%x, 2.)
    return (%o {loss}, %m {mutation %x}))");
  CHECK(tags(run.program, 0) == "static: mutated user input");
}

TEST_CASE("a user input of which a view is returned stays the caller's") {
  PassRun run(tagStaticInputs, verifyTagStaticInputs, R"(
  graph(%x : T {user_input "x"}, %y : T {user_input "y"}):
    %o : T, %v : C = cudagraph::partition[index=0](%x, %y)
      block0(%x.p : T, %y.p : T):
        %1 : T = aten::add.Tensor(%x.p, %y.p)
        %2 : C = aten::t(%x.p)
        -> (%1, %2)
    return (%o {loss}, %v {alias %x}, %y {alias %y}))");
  CHECK(tags(run.program, 0) == "static: aliased user input, staged: user input");
}

TEST_CASE("saved values are what they were in forward") {
  PassRun run(tagStaticInputs, verifyTagStaticInputs, R"(
  graph forward(%w : T {parameter "w"}, %x : T {user_input "x"}):
    %a : T = aten::mul.Tensor(%w, %x)
    return (%a {loss}, %a {saved "a"}, %w {saved "w"}, %x {saved "x"})
  graph backward(%a : T {saved "a"}, %w : T {saved "w"}, %x : T {saved "x"}, %lost : T {saved "lost"}, %t : T {tangent "t"}):
    %o : T = cudagraph::partition[index=0](%a, %w, %x, %lost, %t)
      block0(%a.p : T, %w.p : T, %x.p : T, %l.p : T, %t.p : T):
        %1 : T = aten::add.Tensor(%a.p, %w.p)
        %2 : T = aten::add.Tensor(%x.p, %l.p)
        %3 : T = aten::add.Tensor(%1, %2)
        %4 : T = aten::add.Tensor(%3, %t.p)
        -> (%4)
    return (%o {gradient "w"}))");
  CHECK(tags(run.program, 0) ==
        "static: saved value, static: saved parameter, staged: saved user input, "
        "staged: saved value, staged: tangent");
}

TEST_CASE("a result of control flow is staged, a CPU tensor on another device is a constant") {
  PassRun run(tagStaticInputs, verifyTagStaticInputs, R"(
  graph(%x : G {parameter "x"}, %n : int {symint "n"}, %lr : S {constant "lr"}):
    %c : bool = aten::gt.int(%n, 3)
    %r : G = prim::If(%c)
      block0():
        %i : G = aten::relu(%x)
        -> (%i)
      block1():
        %j : G = aten::neg(%x)
        -> (%j)
    %o : G = cudagraph::partition[index=0](%r, %lr)
      block0(%r.p : G, %lr.p : S):
        %1 : G = aten::mul.Tensor(%r.p, %lr.p)
        -> (%1)
    return (%o {loss}))");
  CHECK(tags(run.program, 0) == "staged: control flow, guarded: host constant");
}

TEST_CASE("an operand without a static shape is refused by name") {
  CHECK_THROWS_WITH(PassRun(tagStaticInputs, verifyTagStaticInputs, R"(
  graph(%x : T {user_input "x"}):
    %i : Long(*, 2, strides=[2, 1], device=cpu) = aten::nonzero(%x)
    %o : Long(*, 2, strides=[2, 1], device=cpu) = cudagraph::partition[index=4](%i)
      block0(%i.p : Long(*, 2, strides=[2, 1], device=cpu)):
        %1 : Long(*, 2, strides=[2, 1], device=cpu) = aten::neg(%i.p)
        -> (%1)
    return (%o {output "o"}))"),
                    Contains("partition 4") && Contains("%i") && Contains("only at run time"));
}

TEST_CASE("verify refuses tags that break a law") {
  const std::string program = std::string(R"(
  graph(%w : T {parameter "w"}, %x : T {user_input "x"}, %m : T {user_input "m"}):
    %u : T = aten::mul_.Scalar(%m, 2.)
    %o : T = cudagraph::partition[index=0, tags=[TAG]](OPERAND))") +
                              kBlock + "    return (%o {loss}, %u {mutation %m})";
  const auto verify = [&](const std::string& operand, const std::string& tag) {
    std::string text = program;
    text.replace(text.find("OPERAND"), 7, operand);
    text.replace(text.find("TAG"), 3, tag);
    verifyTagStaticInputs(readProgram(expandTypes(text)), PassContext{});
  };
  CHECK_NOTHROW(verify("%w", "\"static: parameter\""));
  CHECK_NOTHROW(verify("%x", "\"staged: user input\""));
  CHECK_NOTHROW(verify("%m", "\"static: mutated user input\""));
  CHECK_THROWS_WITH(verify("%x", "\"static: user input\""), Contains("anew each step"));
  CHECK_THROWS_WITH(verify("%m", "\"staged: user input\""), Contains("writes to it"));
  CHECK_THROWS_WITH(verify("%w", "\"staged: parameter\""), Contains("the same each step"));
  CHECK_THROWS_WITH(verify("%w", "\"guarded: w\""), Contains("type"));
  CHECK_THROWS_WITH(verify("%w", "\"rng: w\""), Contains("type"));
  CHECK_THROWS_WITH(verify("%w", ""), Contains("1 operands and 0 tags"));
}
