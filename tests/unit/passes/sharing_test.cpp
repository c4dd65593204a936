#include "passes/analysis/sharing.h"

#include "passes/pipeline/pipeline.h"
#include "tests/catch.h"
#include "tests/unit/pass_fixture.h"

#include <map>
#include <string>

namespace gravure {
namespace {

struct Pair {
  explicit Pair(const std::string& forward, const std::string& results,
                const std::string& inputs = "", const std::string& backward = "")
      : program(readProgram(test::expandTypes(
            "graph forward(%x : R {user_input \"x\"}, %y : R {buffer \"y\"}):\n" + forward +
            "  return (" + results + ")\n" +
            (inputs.empty() ? "" : "graph backward(" + inputs + "):\n" + backward)))),
        sharing(program) {
    for (const Entry& entry : program.entries) {
      for (const Value* input : entry.graph->inputs())
        values[entry.name + input->debugName()] = input;
      for (const Node* node : entry.graph->nodes()) {
        for (const Value* output : node->outputs())
          values[entry.name + output->debugName()] = output;
      }
    }
  }
  bool may(const std::string& a, const std::string& b) {
    return sharing.mayJoin({values.at("forward" + a), values.at("forward" + b)});
  }

  Program program;
  Sharing sharing;
  std::map<std::string, const Value*> values;
};

constexpr const char* kTwo = "  %a : R = aten::relu(%x)\n"
                             "  %b : R = aten::relu(%x)\n"
                             "  %v : R = aten::alias(%b)\n"
                             "  %t : R = aten::relu(%x)\n"
                             "  %u : R = aten::relu(%x)\n";

}  // namespace

TEST_CASE("sharing: what nobody gets may lie with anything, and results with nothing else") {
  Pair pair(kTwo, "%a {output \"a\"}, %v {output \"v\"}");
  CHECK(pair.may("t", "u"));
  CHECK(pair.may("a", "t"));
  CHECK(pair.may("b", "v"));
  CHECK_FALSE(pair.may("a", "b"));
  CHECK_FALSE(pair.may("a", "x"));
  CHECK_FALSE(pair.may("v", "y"));
}

TEST_CASE("sharing: what came to lie together counts as one") {
  Pair pair(kTwo, "%a {output \"a\"}, %v {output \"v\"}");
  REQUIRE(pair.may("a", "t"));
  pair.sharing.join({pair.values.at("forwarda"), pair.values.at("forwardt")});
  CHECK_FALSE(pair.may("t", "b"));
  CHECK(pair.may("t", "u"));
}

TEST_CASE("sharing: what is saved and only read may lie with its like") {
  const std::string saved = "%a {saved \"a\"}, %v {saved \"v\"}, %t {output \"t\"}";
  const std::string inputs = "%a : R {saved \"a\"}, %v : R {saved \"v\"}";
  Pair read(kTwo, saved, inputs,
            "  %g : R = aten::add.Tensor(%a, %v)\n  return (%g {output \"g\"})");
  CHECK(read.may("a", "b"));
  CHECK(read.may("a", "u"));
  CHECK_FALSE(read.may("a", "t"));
  CHECK_FALSE(read.may("a", "x"));
  SECTION("not if the backward writes it") {
    Pair pair(kTwo, saved, inputs,
              "  %g : R = aten::add_.Tensor(%a, %v)\n  return (%v {output \"g\"})");
    CHECK_FALSE(pair.may("a", "b"));
  }
  SECTION("not if the backward returns it") {
    Pair pair(kTwo, saved, inputs, "  %g : R = aten::alias(%v)\n  return (%g {output \"g\"})");
    CHECK_FALSE(pair.may("a", "b"));
  }
  SECTION("not if the caller gets it, too") {
    Pair pair(kTwo, "%a {saved \"a\"}, %v {saved \"v\"}, %b {output \"b\"}", inputs,
              "  %g : R = aten::neg(%v)\n  return (%g {output \"g\"})");
    CHECK_FALSE(pair.may("a", "b"));
  }
  SECTION("not if nobody takes it") {
    Pair pair(kTwo, saved, "%v : R {saved \"v\"}",
              "  %g : R = aten::neg(%v)\n  return (%g {output \"g\"})");
    CHECK_FALSE(pair.may("a", "b"));
  }
}

TEST_CASE("sharing: a program that shares more than before breaks the rule") {
  const auto state = [](const std::string& forward) {
    return Pair(forward, "%a {output \"a\"}, %b {output \"b\"}, %c {saved \"c\"}, %d {saved \"d\"}",
                "%c : R {saved \"c\"}, %d : R {saved \"d\"}",
                "  %g : R = aten::add.Tensor(%c, %d)\n  return (%g {output \"g\"})");
  };
  const std::string rest = "  %c : R = aten::relu(%x)\n  %d : R = aten::relu(%x)\n";
  Pair apart = state("  %a : R = aten::relu(%x)\n  %b : R = aten::relu(%x)\n" + rest);
  Pair shared = state("  %a : R = aten::relu(%x)\n  %b : R = aten::alias(%a)\n" + rest);
  Pair ofInput = state("  %a : R = aten::alias(%x)\n  %b : R = aten::relu(%x)\n" + rest);
  Pair saved = state("  %a : R = aten::relu(%x)\n  %b : R = aten::relu(%x)\n"
                     "  %c : R = aten::relu(%x)\n  %d : R = aten::alias(%c)\n");
  Pair wrong = state("  %a : R = aten::relu(%x)\n  %b : R = aten::relu(%x)\n"
                     "  %c : R = aten::alias(%a)\n  %d : R = aten::relu(%x)\n");
  CHECK(apart.sharing.breaksRule(apart.sharing) == "");
  CHECK(apart.sharing.breaksRule(shared.sharing) == "");
  CHECK(saved.sharing.breaksRule(apart.sharing) == "");
  CHECK_THAT(shared.sharing.breaksRule(apart.sharing),
             Catch::Contains("result 0 (output \"a\") of forward and result 1 (output \"b\")"));
  CHECK_THAT(ofInput.sharing.breaksRule(apart.sharing), Catch::Contains("input 0 (user_input"));
  CHECK_THAT(wrong.sharing.breaksRule(apart.sharing), Catch::Contains("(saved \"c\")"));
}

TEST_CASE("sharing: places that a pass adds or takes away do not count") {
  Pair before(kTwo, "%a {output \"a\"}, %b {gradient \"b\"}, %t {output \"t\"}");
  Pair after(kTwo, "%a {output \"a\"}, %t {output \"t\"}");
  CHECK(after.sharing.breaksRule(before.sharing) == "");
  Pair wrong("  %a : R = aten::relu(%x)\n  %t : R = aten::alias(%a)\n",
             "%a {output \"a\"}, %t {output \"t\"}");
  CHECK(wrong.sharing.breaksRule(before.sharing) != "");
}

TEST_CASE("sharing: a pass that breaks the rule is named") {
  Program program = readProgram(test::expandTypes(
      "graph step(%x : R {user_input \"x\"}):\n  %a : R = aten::relu(%x)\n"
      "  %b : R = aten::relu(%x)\n  return (%a {output \"a\"}, %b {output \"b\"})"));
  Pass joins{.name = "joins", .summary = "", .run = [](Program& changed, PassContext&) {
               Graph& graph = *changed.entries[0].graph;
               graph.eraseOutput(1);
               graph.registerOutput(graph.outputs()[0]);
             }};
  PassContext context;
  CHECK_THROWS_WITH(runPipeline(program, context, {{&joins}}),
                    Catch::Contains("joins: result 0") && Catch::Contains("share memory"));
}

}  // namespace gravure
