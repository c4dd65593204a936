#include "ir/check/program_equality.h"
#include "ir/check/verify.h"
#include "ir/core/cudagraph_ops.h"
#include "passes/pipeline/pipeline.h"
#include "passes/pipeline/program_plan.h"
#include "tests/catch.h"
#include "tests/unit/pass_fixture.h"

using namespace gravure;
using test::expandTypes;

namespace {

/// Two partitions with a host read between, and a size that follows from another one.
const char* kStep = R"(
graph step(%w : T {parameter "w"}, %x : T {user_input "x"}):
  %y : T = aten::mm(%x, %w)
  %a : T = aten::relu(%y)
  %t : S = aten::sum(%a)
  %n : float = aten::_local_scalar_dense(%t)
  %b : T = aten::mul.Scalar(%a, %n)
  %c : T = aten::tanh(%b)
  %loss : S = aten::sum(%c)
  return (%loss {loss}))";

Program step() { return readProgram(expandTypes(kStep)); }

/// The message that running `text` on a program ends with; "" if it ends well.
std::string refusal(Program program, const std::string& text, bool verify = true) {
  PassContext context;
  PipelineOptions options;
  options.verifyEach = options.verifyFacts = verify;
  try {
    runPipeline(program, context, parsePipeline(text), options);
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

std::string parseError(const std::string& text) {
  try {
    (void)parsePipeline(text);
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

int64_t partitionsOf(const Program& program) {
  int64_t count = 0;
  for (const Entry& entry : program.entries) {
    for (const Node* node : entry.graph->nodes()) count += isPartition(node);
  }
  return count;
}

}  // namespace

TEST_CASE("pipeline: its text is read and printed") {
  const std::string text =
      "classify-capturability{host=aten::mm,blocks.3},merge-host-reads,"
      "partition-graph{order=program min-size=3},accumulate-gradients{enabled}";
  CHECK(pipelineText(parsePipeline(text)) == text);
  CHECK(pipelineText(parsePipeline(" plan-memory{ alignment=64  } , ,plan-memory{}")) ==
        "plan-memory{alignment=64},plan-memory");
  CHECK(pipelineText(parsePipeline("all")) == pipelineText(wholePipeline()));
  CHECK(parsePipeline("all,plan-memory").size() == allPasses().size() + 1);
  CHECK(parsePipeline("").empty());
}

TEST_CASE("pipeline: a wrong text is refused with what there is instead") {
  CHECK(parseError("plan-memroy") == "there is no pass 'plan-memroy'; did you mean 'plan-memory'?");
  CHECK(
      parseError("partition-graph{min-sise=3}") ==
      "partition-graph has no option 'min-sise'; did you mean 'min-size'? it has order, min-size, "
      "memory-growth, memory-slack");
  CHECK(
      parseError("partition-graph{xyzzy}") ==
      "partition-graph has no option 'xyzzy'; it has order, min-size, memory-growth, memory-slack");
  CHECK(parseError("merge-host-reads{order=levels}") ==
        "merge-host-reads has no options, and was given 'order'");
  CHECK(parseError("partition-graph{min-size=0}") ==
        "partition-graph{min-size}: expected a whole number of at least 1, found '0'");
  CHECK(parseError("partition-graph{memory-growth=nan}") ==
        "partition-graph{memory-growth}: expected a share of at least 0, found 'nan'");
  CHECK(parseError("plan-memory{alignment=96}") ==
        "plan-memory{alignment}: expected a power of two, found '96'");
  CHECK(parseError("plan-memory{alignment=64") ==
        "expected '}' behind the options of plan-memory, found 'alignment=64'");
  CHECK(parseError("plan-memory{alignment=64}x") ==
        "expected ',' behind the options of plan-memory, found 'x'");
  CHECK(parseError("all{order=levels}") == "'all' has no options; its passes have, and flags");
}

TEST_CASE("pipeline: every option of every pass is read as it is printed") {
  PassOptions odd;
  odd.hostRequests = {"aten::mm", "blocks.3"};
  odd.order = PartitionOrder::Program;
  odd.minPartitionSize = 7;
  odd.memoryGrowth = 0.1 + 0.2;
  odd.memorySlack = 5;
  odd.alignment = 64;
  odd.pieceAlignment = 16;
  odd.accumulateGradients = true;
  odd.writeNumbers = true;
  const std::string text = pipelineText(withAllOptions(wholePipeline(), odd));
  PassOptions read;
  for (const ListedPass& each : parsePipeline(text)) {
    for (const auto& [option, value] : each.options) REQUIRE(option->set(read, value));
  }
  CHECK(read.hostRequests == odd.hostRequests);
  CHECK(read.order == odd.order);
  CHECK(read.minPartitionSize == 7);
  CHECK(read.memoryGrowth == odd.memoryGrowth);
  CHECK(read.memorySlack == 5);
  CHECK(read.alignment == 64);
  CHECK(read.pieceAlignment == 16);
  CHECK(read.accumulateGradients);
  CHECK(read.writeNumbers);
}

TEST_CASE("pipeline: an option holds from its pass on") {
  Program program = step();
  PassContext context;
  runPipeline(program, context, parsePipeline("all"));
  CHECK(partitionsOf(program) == 2);
  // A partition of three calls is too small, and the plan is read again as it was written.
  program = step();
  const std::string before = "await-host-copies,classify-capturability,group-collectives,";
  runPipeline(program, context,
              parsePipeline(before + "partition-graph{min-size=4},tag-static-inputs,"
                                     "plan-memory{alignment=1024},emit-runtime-calls"));
  CHECK(partitionsOf(program) == 0);
  CHECK(context.options.alignment == 1024);
}

TEST_CASE("pipeline: what a pass needs is refused where it is missing") {
  CHECK_THAT(refusal(step(), "partition-graph"),
             Catch::StartsWith("partition-graph needs host reasons, which no pass before it makes "
                               "and the program does not have; run classify-capturability right "
                               "before it (entry 'step': %n = aten::_local_scalar_dense"));
  CHECK_THAT(refusal(step(), "emit-runtime-calls"),
             Catch::StartsWith("emit-runtime-calls needs partitions, which no pass before it makes "
                               "and the program does not have; run partition-graph right before"));
  const std::string cut = "classify-capturability,partition-graph";
  CHECK_THAT(refusal(step(), cut + ",plan-memory"),
             Catch::StartsWith("plan-memory needs operand tags"));
  CHECK(refusal(step(), cut + ",tag-static-inputs,plan-memory,emit-runtime-calls") == "");
  CHECK(refusal(step(), "all") == "");
  // Nobody asks where nothing is verified.
  CHECK(refusal(step(), "partition-graph", /*verify=*/false) == "");
}

TEST_CASE("pipeline: a text that has what a pass needs may begin with it") {
  for (const Pass& pass : allPasses()) {
    INFO(pass.name);
    Program program = step();
    PassContext context;
    PipelineOptions options;
    options.beforePass = [&](const Pass& next, const Program& now) {
      if (next.name == pass.name) program = readProgram(programText(now));
    };
    Program whole = step();
    runPasses(whole, context, {}, options);
    CHECK(refusal(std::move(program), pass.name) == "");
  }
}

TEST_CASE("pipeline: copies without a wait must be awaited before nodes move") {
  const Program program = readProgram(expandTypes(R"(
graph step(%x : G {user_input "x"}):
  %a : T = aten::_to_copy(%x, device=device("cpu"), non_blocking=True)
  %y : T = aten::relu(%a)
  return (%y {output "y"}))"));
  const std::string rest = "classify-capturability,partition-graph";
  CHECK_THAT(refusal(program.clone(), rest),
             Catch::StartsWith("partition-graph needs awaited host copies") &&
                 Catch::Contains("run await-host-copies"));
  CHECK(refusal(program.clone(), "await-host-copies," + rest) == "");
}

TEST_CASE("pipeline: a pass that does not leave what it says is named") {
  Pass liar{.name = "liar", .summary = "", .run = [](Program&, PassContext&) {}};
  liar.makes = {ProgramFact::HostReasons};
  Program program = step();
  PassContext context;
  PipelineOptions options;
  options.verifyFacts = true;
  CHECK_THROWS_WITH(runPipeline(program, context, {{&liar}}, options),
                    Catch::Contains("liar was to leave the program with host reasons"));

  liar.makes = {};
  liar.keeps = {ProgramFact::HostReasons};
  liar.run = [](Program& changed, PassContext&) {
    for (Node* node : changed.entries[0].graph->nodes()) clearHostReason(node);
  };
  Pipeline pipeline = parsePipeline("classify-capturability");
  pipeline.push_back({&liar});
  CHECK_THROWS_WITH(runPipeline(program, context, pipeline, options),
                    Catch::Contains("liar was to leave the program with host reasons"));
}

TEST_CASE("pipeline: a fact that a pass did not keep is missing") {
  Pass drops{.name = "drops", .summary = "", .run = [](Program& changed, PassContext&) {
               for (Node* node : changed.entries[0].graph->nodes()) clearHostReason(node);
             }};
  Pipeline pipeline = parsePipeline("classify-capturability,partition-graph");
  pipeline.insert(pipeline.begin() + 1, {&drops});
  Program program = step();
  PassContext context;
  CHECK_THROWS_WITH(
      runPipeline(program, context, pipeline),
      Catch::Contains("partition-graph needs host reasons, which a pass before it did "
                      "not keep; run classify-capturability right before it"));
}

TEST_CASE("pipeline: what passes leave is verified, without being asked to") {
  Pass breaks{.name = "breaks", .summary = "", .run = [](Program& program, PassContext&) {
                program.entries[0].inputs.pop_back();
              }};
  Program program = step();
  PassContext context;
  CHECK_THROWS_WITH(runPipeline(program, context, {{&breaks}}),
                    Catch::Contains("the passes leave a program that is wrong"));
}

TEST_CASE("pipeline: a pass that says that it changed nothing, and did, is caught") {
  Pass liar{.name = "liar", .summary = "", .run = [](Program& program, PassContext& context) {
              Graph& graph = *program.entries[0].graph;
              Node* first = *graph.nodes().begin();
              first->moveBefore(graph.return_node());
              context.unchanged = true;
            }};
  Program program = readProgram(expandTypes("graph step(%x : T {user_input \"x\"}):\n"
                                            "  %a : T = aten::relu(%x)\n"
                                            "  %b : T = aten::relu(%x)\n"
                                            "  return (%b {output \"b\"})"));
  PassContext context;
  PipelineOptions options;
  options.verifyFacts = true;
  CHECK_THROWS_WITH(
      runPipeline(program, context, {{&liar}}, options),
      Catch::Contains("entry 'step' is not what it was when its memory was looked at"));
}

TEST_CASE("pipeline: a record tells how far a pass came") {
  Program program = step();
  PassContext context;
  PipelineOptions options;
  std::vector<PassRecord> records;
  options.records = &records;
  runPipeline(program, context, parsePipeline("classify-capturability,partition-graph"), options);
  REQUIRE(records.size() == 2);
  CHECK(records[0].remarks == 2);  // the read, and what takes its number
  CHECK(records[1].firstRemark == 2);
  CHECK(records[1].rewrites == 3);  // the order, and two partitions
  CHECK(records[1].phase == PassPhase::Done);

  records.clear();
  program = step();
  CHECK_THROWS(runPipeline(program, context, parsePipeline("partition-graph"), options));
  REQUIRE(records.size() == 1);
  CHECK(records[0].phase == PassPhase::Needs);
}

TEST_CASE("pipeline: the first rewrites alone leave a program that holds") {
  const Program given = readProgram(expandTypes(R"(
graph step(%w : T {parameter "w"}, %x : T {user_input "x"}, %r : R {user_input "r"}):
  %y : T = aten::mm(%x, %w)
  %a : T = aten::relu(%y)
  %i : S = aten::select.int(%r, 0, 0)
  %n : float = aten::_local_scalar_dense(%i)
  %j : S = aten::select.int(%r, 0, 1)
  %m : float = aten::_local_scalar_dense(%j)
  %b : T = aten::mul.Scalar(%a, %n)
  %c : T = aten::mul.Scalar(%b, %m)
  %d : T = aten::tanh(%c)
  %e : T = aten::relu(%d)
  %f : T = aten::neg(%e)
  return (%f {output "f"}))"));
  const auto limited = [&](std::optional<int64_t> limit, PassContext& context) {
    Program program = given.clone();
    if (limit) context.rewrites.set(*limit);
    PipelineOptions options;
    options.verifyFacts = true;
    runPasses(program, context, {}, options);
    return program;
  };
  PassContext free;
  const std::string whole = programText(limited(std::nullopt, free));
  const int64_t all = free.rewrites.asked();
  REQUIRE(all == 4);  // the reads, the order, and two partitions
  int64_t before = -1;
  for (int64_t limit = 0; limit <= all; ++limit) {
    INFO(limit);
    PassContext context;
    const Program program = limited(limit, context);
    CHECK(partitionsOf(program) >= before);
    before = partitionsOf(program);
    CHECK(before == std::max<int64_t>(0, limit - 2));
    if (limit == 0) CHECK(context.rewrites.last() == "");
    if (limit == 1)
      CHECK_THAT(context.rewrites.last(), Catch::StartsWith("merge-host-reads: reads"));
    if (limit == all) CHECK(programText(program) == whole);
  }
}

TEST_CASE("plan: it is what partition-graph carries out") {
  Program program = step();
  PassContext context;
  const auto& plans = planProgram(program, context);
  REQUIRE(plans.size() == 1);
  CHECK(plans[0].partitionCount() == partitionsOf(program));
  const std::string text = planText(program, plans);

  // The passes in front of it, and the plan without its rewrite.
  Program uncut = step();
  PassContext again;
  Pipeline front;
  for (const ListedPass& each : wholePipeline()) {
    if (each.pass->makes.has(ProgramFact::Partitions)) break;
    front.push_back(each);
  }
  runPipeline(uncut, again, front);
  CHECK(text == planText(uncut, {planPartitions(uncut.entries[0], again.options)}));
}

TEST_CASE("plan: calls as given stay where they are") {
  Program program = step();
  PassContext context;
  const std::vector<PartitionPlan>& plans = planProgram(program, context, PlannedCalls::AsGiven);
  CHECK(plans.at(0).partitionCount() == 2);
  for (Node* node : program.entries[0].graph->nodes()) clearHostReason(node);
  CHECK(equalPrograms(program, step()));
}
