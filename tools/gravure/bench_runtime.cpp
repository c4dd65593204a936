#include "tools/gravure/bench_runtime.h"

#include "ir/text/program_text.h"
#include "passes/pass.h"
#include "runtime/runtime.h"
#include "tools/gravure/processor_time.h"

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

/// `count` times: `calls` captured calls, then one on the host. aten::neg stays on the host.
std::string alternating(int64_t count, int64_t calls) {
  std::string text =
      std::string("gravure 1\ngraph step(%v0 : ") + kType + " {user_input \"x\"}):\n";
  int64_t last = 0;
  auto add = [&](const char* op) {
    const std::string from = "%v" + std::to_string(last), to = "%v" + std::to_string(last + 1);
    text += "  " + to + " : " + kType + " = " + op + "(" + from + ")\n";
    ++last;
  };
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t call = 0; call < calls; ++call) add("aten::abs");
    add("aten::neg");
  }
  return text + "  return (%v" + std::to_string(last) + " {output \"y\"})\n";
}

double least(int64_t repetitions, const std::function<void()>& work) {
  double best = 1e30;
  for (int64_t i = 0; i < repetitions; ++i) best = std::min(best, processorMs(work));
  return best;
}

/// Microseconds of one step.
double stepUs(int64_t count, int64_t calls, int64_t repetitions) {
  std::unique_ptr<Device> device = makeHostDevice(/*poison=*/false);
  PassContext context;
  context.options.hostRequests = {"aten::neg"};
  context.options.alignment = device->alignment();
  Program program = readProgram(alternating(count, calls));
  runPasses(program, context);
  RuntimeOptions options;
  options.requireCapture = true;
  Runtime runtime(std::move(program), std::move(device), options);
  const at::Tensor input = at::ones({4});
  auto step = [&] { runtime.run("step", {input}); };
  for (int64_t i = 0; i <= RuntimeOptions{}.maxWarmups + 1; ++i) step();
  TORCH_CHECK(calls == 0 || runtime.stats().replays >= count, "bench: nothing was replayed");
  return least(repetitions, step) * 1e3;
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
  return costs;
}

}  // namespace gravure::tool
