#include "passes/plan_memory.h"

#include "ir/core/cudagraph_ops.h"
#include "tests/unit/pass_fixture.h"

#include "tests/catch.h"

#include <llvm/ADT/STLExtras.h>

#include <algorithm>
#include <filesystem>

using namespace gravure;
using namespace gravure::test;
using Catch::Matchers::Contains;

namespace {

const Buffer* bufferOf(const MemoryPlan& plan, const std::string& label) {
  for (const Buffer& buffer : plan.buffers) {
    if (buffer.label == label) return &buffer;
  }
  return nullptr;
}

std::vector<std::string> labels(const MemoryPlan& plan) {
  std::vector<std::string> all;
  for (const Buffer& buffer : plan.buffers) all.push_back(buffer.label);
  return all;
}

MemoryPlan planOf(const std::string& text) {
  return planMemory(readProgram(expandTypes(text)), PassOptions{});
}

Node* nodeNamed(Program& program, const std::string& output) {
  std::function<Node*(Block*)> find = [&](Block* block) -> Node* {
    for (Node* node : block->nodes()) {
      for (const Value* value : node->outputs()) {
        if (value->debugName() == output) return node;
      }
      for (Block* inner : node->blocks()) {
        if (Node* found = find(inner)) return found;
      }
    }
    return nullptr;
  };
  for (Entry& entry : program.entries) {
    if (Node* found = find(entry.graph->block())) return found;
  }
  return nullptr;
}

const char* const kChain = R"(
  graph(%x : T {user_input "x"}):
    %a : T = aten::relu(%x)
    %b : T = aten::relu(%a)
    %c : T = aten::relu(%b)
    %loss : S = aten::sum(%c)
    return (%loss {loss}))";

}  // namespace

TEST_CASE("what allocates on the program's device with a known size is planned") {
  const MemoryPlan plan = planOf(R"(
  graph(%x : G {parameter "x"}, %cpu : T {user_input "cpu"}):
    %a : G = aten::relu(%x)
    %view : G = aten::view(%a, [4, 4])
    %write : G = aten::mul_.Scalar(%a, 2.)
    %host : T = aten::relu(%cpu)
    %dynamic : Long(*, 2, strides=[2, 1], device=cuda:0) = aten::nonzero(%a)
    %empty : Float(0, 4, strides=[4, 1], device=cuda:0) = aten::slice_copy.Tensor(%a, 0, 0, 0)
    %d : G, %m : Bool(4, 4, strides=[4, 1], device=cuda:0) = aten::native_dropout(%view, 0.5, True)
    return (%d {loss}, %host {output "host"}))");
  CHECK(labels(plan) == std::vector<std::string>{"%a", "%d", "%m"});
  CHECK(plan.verify() == "");
}

TEST_CASE("a chain needs two places, and offsets are written one an output") {
  PassRun run(planMemory, verifyPlanMemory, kChain);
  CHECK(intsAttr(nodeNamed(run.program, "a"), attr::arena) == std::vector<int64_t>{0});
  CHECK(intsAttr(nodeNamed(run.program, "b"), attr::arena) == std::vector<int64_t>{512});
  CHECK(intsAttr(nodeNamed(run.program, "c"), attr::arena) == std::vector<int64_t>{0});
  CHECK(run.context.remarks.count("arena-planned") == 1);
  CHECK_THAT(run.context.remarks.all().back().message,
             Contains("arena of 1024 bytes for 4 buffers"));
}

TEST_CASE("views and in-place results are not given a place, and keep their operand's") {
  PassRun run(planMemory, verifyPlanMemory, R"(
  graph(%x : T {user_input "x"}):
    %a : T = aten::relu(%x)
    %t : C = aten::t(%a)
    %b : T = aten::relu(%x)
    %c : T = aten::add.Tensor(%b, %t)
    return (%c {loss}))");
  CHECK_FALSE(nodeNamed(run.program, "t")->hasAttribute(attr::arena));
  const MemoryPlan plan = writtenPlan(run.program, PassOptions{});
  CHECK(bufferOf(plan, "%a")->end == 4);
  CHECK(bufferOf(plan, "%a")->offset != bufferOf(plan, "%b")->offset);
}

TEST_CASE("planning prints without rewriting, and is the same each time") {
  const Program program = readProgram(expandTypes(kChain));
  const std::string before = programText(program);
  const MemoryPlan a = planMemory(program, PassOptions{}), b = planMemory(program, PassOptions{});
  CHECK(programText(program) == before);
  REQUIRE(a.buffers.size() == 4);
  for (size_t i = 0; i < a.buffers.size(); ++i) CHECK(a.buffers[i].offset == b.buffers[i].offset);
}

TEST_CASE("running the pass again gives the same text") {
  PassRun run(planMemory, verifyPlanMemory, kChain);
  const std::string once = run.text();
  planMemory(run.program, run.context);
  CHECK(run.text() == once);
}

TEST_CASE("the alignment is the options'") {
  PassContext context;
  context.options.alignment = 64;
  Program program = readProgram(expandTypes(kChain));
  planMemory(program, context);
  verifyPlanMemory(program, context);
  CHECK(intsAttr(nodeNamed(program, "b"), attr::arena) == std::vector<int64_t>{64});
}

TEST_CASE(
    "a staged copy has one place, from the top of the entry to its last reader in a partition") {
  const char* text = R"(
  graph(%x : T {user_input "x"}):
    %first : T = aten::relu(%x)
    %a : T = cudagraph::partition[index=0, tags=["staged: user input"]](%x)
      block0(%x.p : T):
        %a1 : T = aten::relu(%x.p)
        -> (%a1)
    %b : T = cudagraph::partition[index=1, tags=["staged: user input", "static: partition 0"]](%x, %a)
      block0(%x.p1 : T, %a.p1 : T):
        %b1 : T = aten::add.Tensor(%x.p1, %a.p1)
        %b2 : T = aten::relu(%b1)
        -> (%b2)
    %late : T = aten::relu(%x)
    return (%b {loss}, %first {output "first"}, %late {output "late"}))";
  PassRun run(planMemory, verifyPlanMemory, text);
  const MemoryPlan plan = writtenPlan(run.program, PassOptions{});
  const Buffer* copy = bufferOf(plan, "%x.staged");
  REQUIRE(copy);
  CHECK(copy->begin == 0);
  CHECK(copy->end == 3);
  CHECK(llvm::count(labels(plan), "%x.staged") == 1);
  CHECK(intsAttr(nodeNamed(run.program, "a"), attr::staging) == std::vector<int64_t>{copy->offset});
  CHECK(intsAttr(nodeNamed(run.program, "b"), attr::staging) ==
        std::vector<int64_t>{copy->offset, -1});
}

TEST_CASE("forward and backward share one plan") {
  const MemoryPlan plan = planOf(R"(
  graph forward(%x : T {user_input "x"}):
    %a : T = aten::relu(%x)
    %temp : T = aten::relu(%a)
    %loss : S = aten::sum(%temp)
    return (%loss {loss}, %a {saved "a"})
  graph backward(%a : T {saved "a"}, %t : S {tangent "t"}):
    %g : T = aten::mul.Tensor(%a, %t)
    %h : T = aten::relu(%g)
    return (%h {gradient "w"}))");
  REQUIRE(bufferOf(plan, "%a"));
  CHECK(bufferOf(plan, "%a")->end == 4);
  // What dies in the forward is used again in the backward.
  CHECK(bufferOf(plan, "%g")->offset == bufferOf(plan, "%temp")->offset);
  CHECK(plan.bytes == plan.load);
}

TEST_CASE("verify refuses offsets that clash, are missing or too many") {
  PassRun run(planMemory, verifyPlanMemory, kChain);
  Node* b = nodeNamed(run.program, "b");
  SECTION("clash") {
    b->is_(attr::arena, {0});
    CHECK_THROWS_WITH(verifyPlanMemory(run.program, run.context), Contains("%a") && Contains("%b"));
  }
  SECTION("missing") {
    b->removeAttribute(attr::arena);
    CHECK_THROWS_WITH(verifyPlanMemory(run.program, run.context),
                      Contains("%b") && Contains("not placed"));
  }
  SECTION("misaligned") {
    b->is_(attr::arena, {520});
    CHECK_THROWS_WITH(verifyPlanMemory(run.program, run.context), Contains("not aligned"));
  }
  SECTION("too many") {
    b->is_(attr::arena, {512, 1024});
    CHECK_THROWS_WITH(verifyPlanMemory(run.program, run.context), Contains("offsets are written"));
  }
}

TEST_CASE("the plan of every committed program comes within one percent or 16 KiB of LOAD") {
  int programs = 0;
  for (const auto& file : std::filesystem::recursive_directory_iterator("tests/programs")) {
    if (file.path().extension() != ".gv") continue;
    Program program = readProgramFile(file.path().string());
    PassContext context;
    runPasses(program, context);
    const MemoryPlan plan = writtenPlan(program, context.options);
    CAPTURE(file.path().string(), plan.bytes, plan.load, plan.buffers.size());
    CHECK(plan.verify() == "");
    CHECK(plan.bytes - plan.load <= std::max<int64_t>(plan.load / 100, 16 << 10));
    ++programs;
  }
  CHECK(programs >= 8);
}
