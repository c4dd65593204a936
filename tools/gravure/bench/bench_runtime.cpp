#include "tools/gravure/bench/bench_runtime.h"

#include "ir/text/program_text.h"
#include "passes/pass.h"
#include "runtime/device/step_mark.h"
#include "runtime/runtime.h"
#include "tools/gravure/bench/empty_launches.h"
#include "tools/gravure/bench/processor_time.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/ones.h>

#include <algorithm>
#include <functional>
#include <string>

namespace gravure::tool {
namespace {

constexpr const char* kType = "Float(4, strides=[1], device=cpu)";
constexpr int64_t kFewCalls = 2, kManyCalls = 10;

/// `count` times: `calls` captured calls, then one on the host, unless there is only one partition.
/// aten::neg stays on the host. `role`: of the input.
std::string alternating(int64_t count, int64_t calls, const char* role = "user_input") {
  std::string text =
      std::string("gravure 1\ngraph step(%v0 : ") + kType + " {" + role + " \"x\"}):\n";
  int64_t last = 0;
  auto add = [&](const char* op) {
    const std::string from = "%v" + std::to_string(last), to = "%v" + std::to_string(last + 1);
    text += "  " + to + " : " + kType + " = " + op + "(" + from + ")\n";
    ++last;
  };
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t call = 0; call < calls; ++call) add("aten::abs");
    if (count > 1) add("aten::neg");
  }
  return text + "  return (%v" + std::to_string(last) + " {output \"y\"})\n";
}

double least(int64_t repetitions, const std::function<void()>& work) {
  double best = 1e30;
  for (int64_t i = 0; i < repetitions; ++i) best = std::min(best, processorMs(work));
  return best;
}

/// The program, captured on `device`.
std::unique_ptr<Runtime> captured(const std::string& text, std::unique_ptr<Device> device,
                                  ResultPolicy results) {
  PassContext context;
  context.options.hostRequests = {"aten::neg"};
  context.options.minPartitionSize = 1;
  context.options.alignment = device->alignment();
  Program program = readProgram(text);
  runPasses(program, context);
  RuntimeOptions options;
  options.requireCapture = true;
  options.results = results;
  auto runtime = std::make_unique<Runtime>(std::move(program), std::move(device), options);
  const at::Tensor input = at::ones({4});
  for (int64_t i = 0; i <= options.maxWarmups + 1; ++i) runtime->run("step", {input});
  return runtime;
}

/// Microseconds of one step.
double stepUs(int64_t count, int64_t calls, int64_t repetitions) {
  const auto runtime =
      captured(alternating(count, calls), makeHostDevice(/*poison=*/false), ResultPolicy::Owned);
  TORCH_CHECK(calls == 0 || runtime->stats().replays >= count, "bench: nothing was replayed");
  const at::Tensor input = at::ones({4});
  return least(repetitions, [&] { runtime->run("step", {input}); }) * 1e3;
}

/// Microseconds of one step whose launches do nothing, as tests/cuda/bench_launch.py has them: the input
/// is a parameter, the result static.
double emptyUs(int64_t count, int64_t calls, int64_t repetitions) {
  constexpr int64_t kSteps = 1000;  // a step is shorter than it takes to ask for the time
  const auto runtime =
      captured(alternating(count, calls, "parameter"), makeEmptyLaunches(), ResultPolicy::Static);
  const at::Tensor input = at::ones({4});
  runtime->run("step", {input});
  const int64_t before = runtime->stats().replays;
  const double ms = least(repetitions, [&] {
    for (int64_t i = 0; i < kSteps; ++i) runtime->run("step", {input});
  });
  const int64_t launches = (runtime->stats().replays - before) / (kSteps * repetitions);
  TORCH_CHECK(launches == (calls == 0 ? 0 : count), "bench: ", launches, " launches a step");
  return ms * 1e3 / double(kSteps);
}

double markUs(int64_t repetitions) {
  constexpr int64_t kMarks = 100000;
  const double ms = least(repetitions, [] {
    for (int64_t i = 0; i < kMarks; ++i) {
      const StepMark mark([] { return std::string("nobody asks for it"); });
    }
  });
  return ms * 1e3 / double(kMarks);
}

double boxedUs(int64_t count, int64_t repetitions) {
  const c10::OperatorHandle neg = c10::Dispatcher::singleton().findSchemaOrThrow("aten::neg", "");
  at::AutoDispatchBelowADInplaceOrView guard;
  torch::jit::Stack stack;
  auto loop = [&] {
    stack.assign(1, at::ones({4}));
    for (int64_t i = 0; i < count; ++i) neg.callBoxed(stack);
  };
  return least(repetitions, loop) * 1e3 / double(count);
}

}  // namespace

RuntimeCosts measureRuntime(int64_t count, int64_t repetitions) {
  RuntimeCosts costs;
  costs.boxedUs = boxedUs(count, repetitions);
  const double n = double(count);
  const double host = stepUs(count, 0, repetitions) / n;
  const double few = stepUs(count, kFewCalls, repetitions) / n;
  const double many = stepUs(count, kManyCalls, repetitions) / n;
  costs.hostNodeUs = host - costs.boxedUs;
  costs.replayedCallUs = (many - few) / double(kManyCalls - kFewCalls);
  costs.boundaryUs = few - host - double(kFewCalls) * costs.replayedCallUs;
  constexpr int64_t kPartitions = 11;
  costs.markUs = markUs(repetitions);
  costs.launchedStepUs = emptyUs(1, 1, repetitions);
  costs.launchedNodesUs = emptyUs(1, count, repetitions);
  const double with = emptyUs(kPartitions, 1, repetitions);
  const double without = emptyUs(kPartitions, 0, repetitions);
  costs.partitionUs = (with - without) / double(kPartitions);
  return costs;
}

}  // namespace gravure::tool
