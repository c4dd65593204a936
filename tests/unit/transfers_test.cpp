// PyTorch's copies of activations to the host and back: which of them are captured, and what a replay does.
#include "ir/core/cudagraph_ops.h"
#include "passes/pipeline/pipeline.h"
#include "tests/unit/runtime_fixture.h"
#include "tests/unit/type_names.h"

#include <torch/library.h>

using namespace gravure;

// Python defines these. They are not called: what runs is the runtime's own.
TORCH_LIBRARY(ao, m) {
  m.def("offload(Tensor tensor) -> Tensor");
  m.def("reload(Tensor tensor, Device device, SymInt[]? original_size=None, SymInt[]? "
        "original_stride=None) -> Tensor");
  m.def(
      "wait_tensor(Tensor(a) tensor, Tensor? keepalive=None, Tensor? last_use_of_storage=None) -> "
      "Tensor(a)");
}

namespace {

/// A step that computes with `between` while its activation is on the host. On `device`.
std::string step(const std::string& between, const std::string& returned,
                 const std::string& device) {
  std::string text = R"(gravure 1
graph step(%w : G {parameter "w"}, %x : G {user_input "x"}):
  %a : G = aten::mm(%x, %w)
  %h : T = ao::offload(%a)
  %b : G = aten::tanh(%a)
  %hw : T = ao::wait_tensor(%h, %a)
  %c : G = aten::mm(%b, %w)
)" + between + R"(  %r : G = ao::reload(%hw, device("cuda:0"), [4, 4], [4, 1])
  %d : G = aten::cos(%c)
  %rw : G = ao::wait_tensor(%r)
  %e : G = aten::mul.Tensor(%rw, %d)
  return (%e {output "e"})" +
                     returned + ")\n";
  text = test::expandTypes(text);
  constexpr std::string_view kGpu = "cuda:0";
  for (size_t at = 0; (at = text.find(kGpu, at)) != std::string::npos; at += device.size())
    text.replace(at, kGpu.size(), device);
  return text;
}

Program planned(const std::string& text) {
  Program program = readProgram(text);
  PassContext context;
  PipelineOptions options;
  options.verifyEach = options.verifyFacts = true;
  runPipeline(program, context, wholePipeline(), options);
  return program;
}

/// Nodes that run on the host.
int64_t hostNodes(const Program& program) {
  int64_t count = 0;
  for (const Node* node : program.entries[0].graph->nodes())
    count += hostReasonOf(node).has_value();
  return count;
}

}  // namespace

TEST_CASE("an activation goes to the host and comes back within one partition") {
  CHECK(hostNodes(planned(step("", "", "cuda:0"))) == 0);
}

TEST_CASE("what others read on the host is copied between partitions") {
  const char* const kReads = "  %n : T = aten::neg(%hw)\n";
  CHECK(hostNodes(planned(step(kReads, "", "cuda:0"))) > 2);
  CHECK(hostNodes(planned(step("", ", %hw {output \"h\"}", "cuda:0"))) > 2);
}

TEST_CASE("a host read between two copies takes neither out of capture") {
  const char* const kRead = "  %s : H = aten::sum(%c)\n"
                            "  %n : float = aten::_local_scalar_dense(%s)\n";
  CHECK(hostNodes(planned(step(kRead, "", "cuda:0"))) == 1);  // the read alone
}

TEST_CASE("a replay copies what this step computed") {
  const std::string text = step("", "", "cpu");
  auto runtime = std::make_unique<Runtime>(planned(text), makeHostDevice(), RuntimeOptions());
  RuntimeOptions plain;
  plain.uncaptured = true;
  auto reference = std::make_unique<Runtime>(planned(text), makeHostDevice(false), plain);
  const at::Tensor w = at::randn({4, 4});
  for (int i = 0; i < 8; ++i) {
    const at::Tensor x = at::randn({4, 4});
    const auto got = runtime->run("step", {w, x}), expected = reference->run("step", {w, x});
    CHECK(sameBits(got, expected));
    const at::Tensor a = at::mm(x, w);
    CHECK(sameBits(got[0].toTensor(), a * at::cos(at::mm(at::tanh(a), w))));
  }
  CHECK(runtime->stats().captures == 1);
  CHECK(runtime->stats().replays > 4);
  CHECK(remarksOf(*runtime) == "");
}
