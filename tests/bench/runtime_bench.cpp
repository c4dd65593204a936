// What the runtime adds to an operator call: a host node over its boxed dispatch, a launch over the
// calls that it replays. All figures of one run, in ns a node; nothing here is a test.
//
//   bazel run //tests/bench:runtime_bench
#include "ir/program_text.h"
#include "runtime/runtime.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/ones.h>

#include <algorithm>
#include <chrono>
#include <cstdio>

namespace {

using Clock = std::chrono::steady_clock;
constexpr int kNodes = 1000;
constexpr int kRounds = 200;
const char* const kType = "Float(8, strides=[1], device=cpu)";

/// Shortest time of one call of `run` over the rounds, in ns.
template <typename Run>
double best(Run&& run) {
  double shortest = 1e18;
  for (int round = 0; round < kRounds; ++round) {
    const auto begin = Clock::now();
    run();
    shortest =
        std::min(shortest, std::chrono::duration<double, std::nano>(Clock::now() - begin).count());
  }
  return shortest;
}

std::string add(const std::string& out, const std::string& in, const std::string& x) {
  return "  %" + out + " : " + kType + " = aten::add.Tensor(%" + in + ", %" + x + ")\n";
}

/// A chain of additions: on the host, or in launches of `each` nodes.
std::string chain(int nodes, int each) {
  std::string text = std::string("gravure 1\ngraph step(%x : ") + kType + " {parameter \"x\"}):\n";
  std::string last = "x";
  for (int i = 0; i < nodes;) {
    const std::string n = std::to_string(i);
    if (each == 0) {
      text += add("v" + n, last, "x");
      last = "v" + n;
      ++i;
      continue;
    }
    text += "  %o" + n + " : " + kType + " = cudagraph::launch[index=" + std::to_string(i / each) +
            "](%" + last + ", %x)\n    block0(%p" + n + " : " + kType + ", %x" + n + " : " + kType +
            "):\n";
    std::string inner = "p" + n;
    for (int k = 0; k < each; ++k, ++i) {
      text += "    " + add("v" + std::to_string(i), inner, "x" + n);
      inner = "v" + std::to_string(i);
    }
    text += "      -> (%" + inner + ")\n";
    last = "o" + n;
  }
  return text + "  return (%" + last + " {output \"y\"})\n";
}

double boxedDispatch() {
  const at::AutoDispatchBelowADInplaceOrView guard;
  const auto handle = c10::Dispatcher::singleton().findSchemaOrThrow("aten::add", "Tensor");
  const at::Tensor x = at::ones({8});
  torch::jit::Stack stack;
  c10::IValue value;
  return best([&] {
           value = x;
           for (int i = 0; i < kNodes; ++i) {
             stack.emplace_back(std::move(value));
             stack.emplace_back(x);
             stack.emplace_back(int64_t{1});
             handle.callBoxed(stack);
             value = std::move(stack.back());
             stack.clear();
           }
         }) /
         kNodes;
}

/// ns a step, once everything is captured.
double stepTime(const std::string& text, bool uncaptured) {
  gravure::RuntimeOptions options;
  options.uncaptured = uncaptured;
  options.requireCapture = !uncaptured;
  gravure::Runtime runtime(gravure::readProgram(text), gravure::makeHostDevice(false), options);
  const at::Tensor x = at::ones({8});
  for (int step = 0; step < 4; ++step) runtime.run("step", {x});
  return best([&] { runtime.run("step", {x}); });
}

}  // namespace

int main() {
  const double empty = stepTime(chain(1, 0), true);
  const double boxed = boxedDispatch();
  const double uncaptured = (stepTime(chain(kNodes, 0), true) - empty) / kNodes;
  const double served = (stepTime(chain(kNodes, 0), false) - empty) / kNodes;
  const double whole = stepTime(chain(kNodes, kNodes), false);
  const double single = stepTime(chain(kNodes, 1), false);
  std::printf("boxed dispatch of aten::add        %8.0f ns\n", boxed);
  std::printf("host node, PyTorch's allocator     %8.0f ns  %+6.0f over boxed\n", uncaptured,
              uncaptured - boxed);
  std::printf("host node, served from the arena   %8.0f ns  %+6.0f over boxed\n", served,
              served - boxed);
  std::printf("launch of one node                 %8.0f ns\n", single / kNodes);
  std::printf("one launch of %d nodes, a node   %8.0f ns\n", kNodes, whole / kNodes);
  std::printf("a launch over the calls it replays %8.0f ns\n", (single - whole) / kNodes);
  return 0;
}
