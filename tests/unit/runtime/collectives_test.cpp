// Collectives in partitions, with a backend of the test's own: what the host device refuses as NCCL
// and PyTorch do, and what the runtime does about it. Several ranks: tests/python/test_distributed.py.
#include "runtime/ranks/collective_environment.h"
#include "tests/unit/runtime_fixture.h"

#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/library.h>

#include <map>

using namespace gravure;

namespace {

class DoneWork final : public c10d::Work {
 public:
  bool wait(std::chrono::milliseconds) override { return true; }
};

/// One rank alone. Its sequence number tells whether a communicator is there.
class LonelyBackend final : public c10d::Backend {
 public:
  explicit LonelyBackend(bool connects) : Backend(0, 1), connects_(connects) {}
  const std::string getBackendName() const override { return "lonely"; }
  uint64_t getSequenceNumberForGroup() override { return connects_ ? calls : 0; }
  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>& tensors,
                                           const c10d::AllreduceOptions&) override {
    ++calls;
    for (at::Tensor& tensor : tensors) tensor.mul_(2);
    return c10::make_intrusive<DoneWork>();
  }

  uint64_t calls = 0;

 private:
  const bool connects_;
};

/// A group that c10d knows by name, for as long as this lives.
struct LonelyGroup {
  explicit LonelyGroup(std::string named, bool connects = true)
      : name(std::move(named)), backend(c10::make_intrusive<LonelyBackend>(connects)) {
    group->setGroupName(name);
    group->setBackend(c10::kCPU, c10d::ProcessGroup::BackendType::CUSTOM, backend);
    group->setDefaultBackend(c10d::ProcessGroup::BackendType::CUSTOM);
    c10d::register_process_group(name, group);
  }
  ~LonelyGroup() { c10d::unregister_process_group(name); }

  const std::string name;
  const c10::intrusive_ptr<LonelyBackend> backend;
  const c10::intrusive_ptr<c10d::ProcessGroup> group =
      c10::make_intrusive<c10d::ProcessGroup>(c10::make_intrusive<c10d::HashStore>(), 0, 1);
};

at::Tensor call(const char* name, torch::jit::Stack stack) {
  c10::Dispatcher::singleton().findSchemaOrThrow(name, "").callBoxed(stack);
  return stack.at(0).toTensor();
}

std::string reducing(const std::string& group, bool waits = true, bool startsBefore = false) {
  const std::string start = "%a : Float(4, strides=[1], device=cpu) = "
                            "_c10d_functional::all_reduce(%w" +
                            std::string(startsBefore ? "" : ".0") + ", \"sum\", \"" + group +
                            "\")\n";
  const std::string wait = "      %b : Float(4, strides=[1], device=cpu) = "
                           "_c10d_functional::wait_tensor(%a" +
                           std::string(startsBefore ? ".0" : "") + ")\n";
  const std::string param = startsBefore ? "%a.0" : "%w.0";
  return "gravure 1\ngraph step(%w : Float(4, strides=[1], device=cpu) {parameter \"w\"}):\n" +
         (startsBefore ? "  " + start : std::string()) +
         "  %y.out : Float(4, strides=[1], device=cpu) = cudagraph::launch[index=0](" +
         (startsBefore ? "%a" : "%w") + ")\n    block0(" + param +
         " : Float(4, strides=[1], device=cpu)):\n" + (startsBefore ? "" : "      " + start) +
         (waits ? wait : std::string()) +
         "      %y : Float(4, strides=[1], device=cpu) = aten::neg(" + (waits ? "%b" : "%w.0") +
         ")\n      -> (%y)\n"
         "  %y.own : Float(4, strides=[1], device=cpu) = cudagraph::own(%y.out)\n"
         "  return (%y.own {output \"y\"})\n";
}

/// One call of compiled code that sums in each of these groups.
std::string compiled(const std::string& groups, const std::string& texts) {
  return "gravure 1\ngraph step(%w : Float(4, strides=[1], device=cpu) {parameter \"w\"}):\n"
         "  %y.out : Float(4, strides=[1], device=cpu) = cudagraph::launch[index=0](%w)\n"
         "    block0(%w.0 : Float(4, strides=[1], device=cpu)):\n"
         "      %y : Float(4, strides=[1], device=cpu) = gravure::compiled_communicating("
         "\"code\", 2, [%w.0], [" +
         groups + "], [" + texts +
         "])\n      -> (%y)\n"
         "  %y.own : Float(4, strides=[1], device=cpu) = cudagraph::own(%y.out)\n"
         "  return (%y.own {output \"y\"})\n";
}

std::vector<at::Tensor> sumInEach(const std::string&, int64_t, at::TensorList inputs,
                                  const c10::List<std::string>& groups,
                                  const c10::List<std::string>&, at::IntArrayRef) {
  at::Tensor x = inputs[0].neg();
  for (const std::string& group : groups) {
    x = call("_c10d_functional::all_reduce", {x, "sum", group});
    x = call("_c10d_functional::wait_tensor", {x});
  }
  return {x};
}

/// Six steps, each with the result that is due.
std::unique_ptr<Runtime> afterSixSteps(const std::string& text, double due) {
  auto runtime = makeRuntime(text);
  const at::Tensor w = at::arange(4, at::kFloat);
  for (int step = 0; step < 6; ++step) {
    CAPTURE(step);
    w.add_(1);
    CHECK(sameBits(runtime->run("step", {w})[0].toTensor(), w.mul(due)));
  }
  return runtime;
}

}  // namespace

TORCH_LIBRARY_IMPL(gravure, CompositeExplicitAutograd, m) {
  m.impl("compiled_communicating", &sumInEach);
}

TEST_CASE("a collective and its wait are captured together and replayed", "[law7]") {
  const LonelyGroup group("whole");
  const auto runtime = afterSixSteps(reducing("whole"), -2);
  CHECK(countIn(*runtime, PartitionState::Captured) == 1);
  CHECK(group.backend->calls == 6);  // each step's own; a capture makes none
  CHECK(remarksOf(*runtime) == "");
}

TEST_CASE("compiled code that communicates is captured, and needs no wait behind it", "[law7]") {
  const LonelyGroup group("inside"), other("inside too");
  const auto runtime = afterSixSteps(compiled("\"inside\", \"inside too\"", "\"a\", \"b\""), -4);
  CHECK(countIn(*runtime, PartitionState::Captured) == 1);
  CHECK(group.backend->calls == 6);
  CHECK(other.backend->calls == 6);
  CHECK(remarksOf(*runtime) == "");
}

TEST_CASE("each group of compiled code has communicated before it is captured", "[law8]") {
  const LonelyGroup group("ready"), other("not ready", /*connects=*/false);
  const auto runtime = afterSixSteps(compiled("\"ready\", \"not ready\"", "\"a\", \"b\""), -4);
  CHECK(countIn(*runtime, PartitionState::Quarantined) == 1);
  CHECK(remarksOf(*runtime).find("it is the first collective of its group") != std::string::npos);
}

TEST_CASE("each group of compiled code must be there, and be named", "[law8][law11]") {
  const LonelyGroup group("known");
  const auto refusal = [](const std::string& groups) {
    auto runtime = makeRuntime(compiled(groups, "\"a\", \"b\""));
    for (int step = 0; step < 4; ++step) {
      try {
        (void)runtime->run("step", {at::arange(4, at::kFloat)});
      } catch (const c10::Error&) {  // c10d's own words, of a group that it does not know
      }
    }
    CHECK(countIn(*runtime, PartitionState::Captured) == 0);
    return remarksOf(*runtime);
  };
  CHECK_THAT(refusal("\"known\", \"unknown\""), Catch::Contains("group \"unknown\" is not ready"));
  CHECK_THAT(refusal("\"known\""), Catch::Contains("its group is no constant of the program"));
}

TEST_CASE("a group's first collective may not stand in a capture", "[law8]") {
  // The communicator of such a backend is never made, whatever ran before the capture.
  const LonelyGroup group("first", /*connects=*/false);
  const auto runtime = afterSixSteps(reducing("first"), -2);
  CHECK(countIn(*runtime, PartitionState::Quarantined) == 1);
  CHECK(remarksOf(*runtime).find("it is the first collective of its group") != std::string::npos);
}

TEST_CASE("a group that is made anew communicates before it is captured", "[law8]") {
  auto group = std::make_unique<LonelyGroup>("anew");
  auto runtime = makeRuntime(reducing("anew"));
  const at::Tensor w = at::arange(4, at::kFloat);
  for (int step = 0; step < 5; ++step) (void)runtime->run("step", {w});
  CHECK(countIn(*runtime, PartitionState::Captured) == 1);
  runtime->dropCaptures();  // as destroy_process_group has it done
  group.reset();
  group = std::make_unique<LonelyGroup>("anew");
  const int64_t uncaptured = runtime->stats().uncapturedSteps;
  for (int step = 0; step < 3; ++step) {
    CAPTURE(step);
    CHECK(sameBits(runtime->run("step", {w})[0].toTensor(), w.mul(-2)));
  }
  CHECK(runtime->stats().uncapturedSteps == uncaptured + 1);
  CHECK(countIn(*runtime, PartitionState::Captured) == 1);
  CHECK(group->backend->calls == 3);
  CHECK(remarksOf(*runtime) == "");
}

TEST_CASE("a graph that holds a group which is gone is not replayed", "[law8]") {
  auto group = std::make_unique<LonelyGroup>("replaced");
  auto runtime = makeRuntime(reducing("replaced"));
  const at::Tensor w = at::arange(4, at::kFloat);
  for (int step = 0; step < 5; ++step) (void)runtime->run("step", {w});
  const auto before = group->backend;
  const uint64_t calls = before->calls;
  group.reset();
  CHECK_THROWS_WITH(runtime->run("step", {w}), Catch::Contains("replaced"));
  group = std::make_unique<LonelyGroup>("replaced");
  CHECK(sameBits(runtime->run("step", {w})[0].toTensor(), w.mul(-2)));
  CHECK(before->calls == calls);
}

TEST_CASE("a wait for a collective of another graph, or of none, may not be captured", "[law7]") {
  const LonelyGroup group("apart");
  const auto runtime = afterSixSteps(reducing("apart", true, /*startsBefore=*/true), -2);
  CHECK(countIn(*runtime, PartitionState::Quarantined) == 1);
  CHECK(remarksOf(*runtime).find("it waits for a collective that was not captured with it") !=
        std::string::npos);
}

TEST_CASE("a group without a backend for the device is refused by name", "[law8][law11]") {
  auto group =
      c10::make_intrusive<c10d::ProcessGroup>(c10::make_intrusive<c10d::HashStore>(), 0, 1);
  c10d::register_process_group("bare", group);
  auto runtime = makeRuntime(reducing("bare"));
  CHECK_THROWS(runtime->run("step", {at::arange(4, at::kFloat)}));  // c10d's own words
  CHECK(countIn(*runtime, PartitionState::Quarantined) == 1);
  CHECK(remarksOf(*runtime).find("group \"bare\" is not ready") != std::string::npos);
  c10d::unregister_process_group("bare");
}

TEST_CASE("settings that captured collectives cannot live with are refused", "[law8]") {
  std::map<std::string, std::string> set;
  const Environment environment = [&](const char* name) {
    const auto at = set.find(name);
    return at == set.end() ? nullptr : at->second.c_str();
  };
  const auto refused = [&](const std::string& name, const std::string& value) {
    set = {{name, value}};
    return refusedEnvironment("nccl", environment);
  };
  CHECK(refusedEnvironment("nccl", environment).empty());
  CHECK(ncclWouldRegister("nccl", environment));
  CHECK_FALSE(ncclWouldRegister("gloo", environment));
  for (const char* name : {"TORCH_NCCL_BLOCKING_WAIT", "NCCL_BLOCKING_WAIT", "TORCH_NCCL_NAN_CHECK",
                           "TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK"}) {
    CAPTURE(name);
    CHECK(refused(name, "0").empty());
    CHECK_THAT(refused(name, "1"), Catch::Contains(name) && Catch::Contains("unset it"));
    set = {{name, "1"}};
    CHECK(refusedEnvironment("gloo", environment).empty());
  }
  // The same library under the name that 2.15's class gives itself.
  CHECK(isNccl("nccl"));
  CHECK(isNccl("nccl2"));
  CHECK_FALSE(isNccl("gloo"));
  set = {{"NCCL_BLOCKING_WAIT", "1"}};
  CHECK_THAT(refusedEnvironment("nccl2", environment), Catch::Contains("unset it"));
  CHECK(ncclWouldRegister("nccl2", environment));
  CHECK(refused("NCCL_GRAPH_REGISTER", "0").empty());
  CHECK_FALSE(ncclWouldRegister("nccl", environment));
  CHECK_THAT(refused("NCCL_GRAPH_REGISTER", "1"), Catch::Contains("set it to 0"));
  CHECK_THAT(refused("NCCL_GRAPH_MIXING_SUPPORT", "0"), Catch::Contains("unset it"));
  CHECK_THAT(refused("TORCH_DISTRIBUTED_DEBUG", "detail"), Catch::Contains("use INFO or OFF"));
  CHECK(refused("TORCH_DISTRIBUTED_DEBUG", "INFO").empty());
}
