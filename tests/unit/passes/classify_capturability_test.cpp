// Verdicts that a text cannot hold, and what the verifier refuses. The golden files hold the rest.
#include "passes/classify_capturability.h"

#include "ir/core/args.h"
#include "ir/core/cudagraph_ops.h"
#include "tests/catch.h"
#include "tests/unit/pass_fixture.h"

#include <torch/library.h>

namespace gravure {
namespace {

at::Tensor sameTensor(const at::Tensor& x) { return x.clone(); }

TORCH_LIBRARY(gravure_test, library) {
  library.def("unsafe(Tensor x) -> Tensor", {at::Tag::cudagraph_unsafe});
  library.impl("unsafe", c10::DispatchKey::CPU, sameTensor);
}

test::PassRun classify(const std::string& text) {
  return {classifyCapturability, verifyClassifyCapturability, text};
}

Node* nodeAt(const Program& program, size_t index) {
  auto at = program.entries[0].graph->nodes().begin();
  std::advance(at, index);
  return *at;
}

/// A program whose one statement calls `op` without arguments; for schemas that no text can call.
Program calling(const std::string& op, const std::string& overload) {
  Program program = readProgram("graph step(): return ()");
  Graph& graph = *program.entries[0].graph;
  Node* node = graph.insertNode(graph.create(c10::Symbol::fromQualString(op), 0));
  setOverload(node, overload);
  return program;
}

}  // namespace

TEST_CASE("classify: an operator with PyTorch's tag stays outside") {
  const auto run = classify("graph step(%x : T {user_input \"x\"}):\n"
                            "  %y : T = gravure_test::unsafe(%x)\n  return (%y {output \"y\"})");
  CHECK(hostReasonOf(nodeAt(run.program, 0)) == HostReason::UnsafeTag);
  CHECK(run.context.remarks.count("unsafe-tag") == 1);
}

TEST_CASE("classify: a call with an object of a class is opaque") {
  PassContext context;
  Program program = calling("profiler::_record_function_exit", "_RecordFunction");
  classifyCapturability(program, context);
  CHECK(hostReasonOf(nodeAt(program, 0)) == HostReason::OpaqueCallable);
}

TEST_CASE("classify: a raw process-group operator blocks the host") {
  PassContext context;
  Program program = calling("c10d::barrier", "");
  classifyCapturability(program, context);
  CHECK(hostReasonOf(nodeAt(program, 0)) == HostReason::BlockingCollective);
}

TEST_CASE("classify: an operator that reads its operands on the host only for some of them") {
  const std::string head = "graph step(%x : T {user_input \"x\"}, %v : S {user_input \"v\"}, "
                           "%c : S {constant \"c\"}, %m : B {user_input \"m\"}, "
                           "%i : Long(2, strides=[1], device=cpu) {user_input \"i\"}):\n  %y : ";
  const auto reason = [&](const std::string& call) {
    const auto run = classify(head + call + "\n  return (%y {output \"y\"})");
    return hostReasonOf(nodeAt(run.program, 0));
  };
  CHECK(reason("T = aten::masked_fill.Tensor(%x, %m, %v)") == HostReason::HostSync);
  CHECK(reason("T = aten::masked_fill.Tensor(%x, %m, %c)") == std::nullopt);
  CHECK(reason("T = aten::masked_fill.Scalar(%x, %m, 1.)") == std::nullopt);
  CHECK(reason("T = aten::index_fill.int_Tensor(%x, 0, %i, %v)") == HostReason::HostSync);
  CHECK(reason("T = aten::index_fill.int_Tensor(%x, 0, %i, %c)") == std::nullopt);
  CHECK(reason("T = aten::index_fill.int_Scalar(%x, 0, %i, 1.)") == std::nullopt);
  CHECK(reason("T = aten::histc(%x, 4)") == HostReason::HostSync);
  CHECK(reason("T = aten::histc(%x, 4, 0, 4)") == std::nullopt);
}

TEST_CASE("classify: products of groups are one kernel of bfloat16 on a GPU alone") {
  const auto reason = [&](const std::string& dtype, const std::string& device,
                          const std::string& offsets) {
    const std::string a = dtype + "(2, 4, 8, strides=[32, 8, 1], device=" + device + ")",
                      b = dtype + "(2, 8, 8, strides=[64, 8, 1], device=" + device + ")",
                      flat = dtype + "(4, 8, strides=[8, 1], device=" + device + ")";
    const bool grouped = offsets != "None";
    const auto run =
        classify("graph step(%a : " + (grouped ? flat : a) + " {user_input \"a\"}, %b : " + b +
                 " {parameter \"b\"}, %o : Int(2, strides=[1], device=" + device +
                 ") {user_input \"o\"}):\n  %y : " + (grouped ? flat : a) +
                 " = aten::_grouped_mm(%a, %b, " + offsets + ")\n  return (%y {output \"y\"})");
    return hostReasonOf(nodeAt(run.program, 0));
  };
  CHECK(reason("BFloat16", "cuda:0", "%o") == std::nullopt);
  CHECK(reason("Float", "cuda:0", "%o") == HostReason::HostSync);
  CHECK(reason("Half", "cuda:0", "%o") == HostReason::HostSync);
  CHECK(reason("BFloat16", "cpu", "%o") == HostReason::HostSync);
  CHECK(reason("Float", "cpu", "%o") == HostReason::HostSync);
  CHECK(reason("Float", "cpu", "None") == std::nullopt);
}

TEST_CASE("classify: nothing of a program on the CPU is foreign to it") {
  const auto run = classify("graph step(%x : S {parameter \"x\"}, %y : T {user_input \"y\"}):\n"
                            "  %a : T = aten::mul.Tensor(%y, %x)\n"
                            "  %b : T = aten::_to_copy(%a, device=device(\"cpu\"))\n"
                            "  return (%b {output \"b\"})");
  CHECK(run.context.remarks.all().empty());
}

TEST_CASE("classify: an undefined result that nothing uses does not matter") {
  const std::string text =
      "graph step(%x : T {user_input \"x\"}):\n"
      "  %a : T, %b : Tensor, %c : Tensor = aten::native_layer_norm(%x, [4], None, None, 1e-05)\n";
  CHECK(classify(text + "  return (%a {output \"a\"})").context.remarks.all().empty());
  CHECK(classify(text + "  return (%a {output \"a\"}, %b {output \"b\"})")
            .context.remarks.count("dynamic-shape") == 1);
}

TEST_CASE("classify: a second run forgets the reasons of the first") {
  auto run = classify("graph step(%x : T {user_input \"x\"}):\n"
                      "  %y : T = aten::relu(%x)\n  return (%y {output \"y\"})");
  setHostReason(nodeAt(run.program, 0), HostReason::UserRequest);
  PassContext context;
  classifyCapturability(run.program, context);
  CHECK_FALSE(hostReasonOf(nodeAt(run.program, 0)));
}

TEST_CASE("classify: the verifier wants the reason that the node has") {
  auto run = classify("graph step(%x : S {user_input \"x\"}):\n"
                      "  %n : float = aten::_local_scalar_dense(%x)\n"
                      "  %m : float = aten::mul.float(%n, %n)\n  return (%m {output \"m\"})");
  Node* read = nodeAt(run.program, 0);
  read->removeAttribute(attr::host);
  CHECK_THROWS_WITH(verifyClassifyCapturability(run.program, run.context),
                    Catch::Contains("must run on the host"));
  setHostReason(read, HostReason::HostSync);
  setHostReason(nodeAt(run.program, 1), HostReason::HostSync);
  CHECK_THROWS_WITH(verifyClassifyCapturability(run.program, run.context),
                    Catch::Contains("is a number node"));
}

TEST_CASE("classify: a request matches whole names") {
  const auto run = classify("graph step(%x : T {user_input \"x\"}):\n"
                            "  %y : T = aten::add.Tensor(%x, %x) in \"blocks.1.moe\"\n"
                            "  return (%y {output \"y\"})");
  const Node* node = nodeAt(run.program, 0);
  for (const char* yes : {"aten::add", "aten::add.Tensor", "blocks", "blocks.1", "blocks.1.moe"}) {
    CHECK(isRequested(node, yes));
  }
  for (const char* no : {"aten::ad", "aten::add.", "aten::add.Scalar", "aten::add_", "blocks.1.mo",
                         "block", "locks.1"}) {
    CHECK_FALSE(isRequested(node, no));
  }
}

}  // namespace gravure
