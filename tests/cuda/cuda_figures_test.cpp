// What a program takes of a GPU's memory, beside what it takes uncaptured; and what a step adds to a
// launch, by name alone: cuda_device_test "what a step adds to a launch".

#include "tests/cuda/pair.h"

#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <sstream>

using namespace gravure;
using namespace gravure::test;
using namespace c10::cuda::CUDACachingAllocator;

namespace {

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kLayers = 16, kSize = 2048;

/// Layers of matmul and relu, forward and backward: activations die in the order of a training step.
std::string layered() {
  std::ostringstream text;
  const std::string type = "Float(2048, 2048, strides=[2048, 1], device=cuda:0)";
  const std::string turned = "Float(2048, 2048, strides=[1, 2048], device=cuda:0)";
  text << "gravure 1\ngraph step(%r0 : " << type << " {user_input \"x\"}";
  for (int64_t i = 1; i <= kLayers; ++i)
    text << ",\n  %w" << i << " : " << type << " {parameter \"w" << i << "\"}";
  text << "):\n";
  for (int64_t i = 1; i <= kLayers; ++i) {
    text << "  %y" << i << " : " << type << " = aten::mm(%r" << i - 1 << ", %w" << i << ")\n";
    text << "  %r" << i << " : " << type << " = aten::relu(%y" << i << ")\n";
  }
  text << "  %loss : Float(device=cuda:0) = aten::mean(%r" << kLayers << ")\n";
  text << "  %d" << kLayers << " : " << type << " = aten::mul.Tensor(%r" << kLayers << ", 1e-06)\n";
  for (int64_t i = kLayers; i >= 1; --i) {
    text << "  %e" << i << " : " << type << " = aten::threshold_backward(%d" << i << ", %r" << i
         << ", 0)\n";
    text << "  %t" << i << " : " << turned << " = aten::t(%r" << i - 1 << ")\n";
    text << "  %g" << i << " : " << type << " = aten::mm(%t" << i << ", %e" << i << ")\n";
    if (i == 1) break;
    text << "  %v" << i << " : " << turned << " = aten::t(%w" << i << ")\n";
    text << "  %d" << i - 1 << " : " << type << " = aten::mm(%e" << i << ", %v" << i << ")\n";
  }
  text << "  return (%loss {loss}";
  for (int64_t i = 1; i <= kLayers; ++i) text << ", %g" << i << " {gradient \"w" << i << "\"}";
  text << ")\n";
  return text.str();
}

int64_t reserved() { return getDeviceStats(0).reserved_bytes[0].current; }
int64_t peak() { return getDeviceStats(0).reserved_bytes[0].peak; }

struct Figures {
  int64_t inputs = 0, after = 0, peak = 0, load = 0;
};

Figures figuresOf(const std::string& text, bool uncaptured, bool accumulate = false) {
  emptyCache();
  const int64_t before = reserved();
  std::vector<c10::IValue> inputs{values({kSize, kSize}, 0)};
  for (int64_t i = 1; i <= kLayers; ++i) inputs.emplace_back(values({kSize, kSize}, i).mul_(0.03));
  for (int64_t i = 0; accumulate && i < kLayers; ++i)
    inputs.emplace_back(at::zeros({kSize, kSize}, at::TensorOptions(kGpu)));
  emptyCache();
  Figures figures;
  figures.inputs = reserved() - before;
  RuntimeOptions options;
  options.uncaptured = uncaptured;
  auto runtime = loadWith(text, options, 0, accumulate);
  resetPeakStats(0);
  for (int step = 0; step < 4; ++step) (void)runtime->run("step", inputs);
  figures.peak = peak() - before;
  emptyCache();
  figures.after = reserved() - before;
  figures.load = runtime->stats().arenaLoad;
  if (!uncaptured) CHECK(runtime->stats().captures == 1);
  return figures;
}

/// Whether a product allocates its workspace anew.
bool allocatesWorkspaces() {
  const at::Tensor a = values({64, 64}, 0), b = values({64, 64}, 1);
  const auto allocated = [] { return getDeviceStats(0).allocated_bytes[0]; };
  const int64_t before = allocated().current;
  resetPeakStats(0);
  (void)at::mm(a, b);
  return allocated().peak - before > kMiB;
}

}  // namespace

TEST_CASE("after its capture a program takes its inputs, its live bytes and the workspaces") {
  NEEDS_GPU();
  (void)at::mm(values({64, 64}, 0), values({64, 64}, 1));  // the workspace of this stream
  const auto workspaces = static_cast<int64_t>(at::cuda::getChosenWorkspaceSize() +
                                               at::cuda::getCUDABlasLtWorkspaceSize());
  const std::string text = layered();
  const Figures eager = figuresOf(text, true), ours = figuresOf(text, false);
  WARN("MiB: inputs " << ours.inputs / kMiB << ", live bytes " << ours.load / kMiB
                      << ", workspaces " << workspaces / kMiB << "; after capture "
                      << ours.after / kMiB << "; peak " << ours.peak / kMiB << ", uncaptured "
                      << eager.peak / kMiB);
  CHECK(ours.after <= ours.inputs + ours.load * 102 / 100 + workspaces + 8 * kMiB);
  // Warm-up and capture need no more than what stays: what they took is given back in between. Where a
  // product allocates its workspace (torch 2.15), that of the warm-up's last one lies beside the arena.
  const int64_t passing = allocatesWorkspaces() ? workspaces : 0;
  CHECK(ours.peak <= ours.after + passing + 8 * kMiB);
  const Figures added = figuresOf(text, false, true);
  WARN("with gradients accumulated: inputs and buffers " << added.inputs / kMiB << ", live bytes "
                                                         << added.load / kMiB << ", after capture "
                                                         << added.after / kMiB);
  // The buffers are inputs; no gradient has a place of its own to the end of the step.
  CHECK(added.load <= ours.load);
  CHECK(added.after <= ours.after + (added.inputs - ours.inputs) + 16 * kMiB);
}

namespace {

/// As many operators one after another, each on what the one before made.
std::string chain(int64_t nodes) {
  std::ostringstream text;
  const char* const type = "Float(256, strides=[1], device=cuda:0)";
  text << "gravure 1\ngraph step(%v0 : " << type << " {parameter \"x\"}):\n";
  for (int64_t i = 0; i < nodes; ++i)
    text << "  %v" << i + 1 << " : " << type << " = aten::abs(%v" << i << ")\n";
  text << "  return (%v" << nodes << " {output \"y\"})\n";
  return text.str();
}

/// Microseconds until `call` returns, behind `before`, the device idle: the median of 200.
double hostMicroseconds(const std::function<void()>& call, const std::function<void()>& before) {
  std::vector<double> took;
  for (int round = 0; round < 200; ++round) {
    before();
    c10::cuda::device_synchronize();
    const auto begun = std::chrono::steady_clock::now();
    call();
    const std::chrono::duration<double, std::micro> time = std::chrono::steady_clock::now() - begun;
    took.push_back(time.count());
  }
  std::nth_element(took.begin(), took.begin() + 100, took.end());
  return took[100];
}

struct Launches {
  explicit Launches(int64_t nodes) : graph(std::make_unique<at::cuda::CUDAGraph>()) {
    runtime = load(chain(nodes), false, ResultPolicy::Static);
    inputs = {values({256}, 0)};
    for (int step = 0; step < 4; ++step) (void)runtime->run("step", inputs);
    CHECK(runtime->stats().captures == 1);
    const c10::cuda::CUDAStreamGuard side(at::cuda::getStreamFromPool());
    graph->capture_begin();
    kept = inputs[0].toTensor();
    for (int64_t i = 0; i < nodes; ++i) kept = kept.abs();
    graph->capture_end();
  }

  std::unique_ptr<Runtime> runtime;
  std::unique_ptr<at::cuda::CUDAGraph> graph;
  std::vector<c10::IValue> inputs;
  at::Tensor kept;
};

}  // namespace

TEST_CASE("what a step adds to a launch", "[.]") {
  NEEDS_GPU();
  const Launches many(1000);
  // Behind a thousand nodes little is left in the processor's caches.
  const std::vector<std::pair<std::string, std::function<void()>>> before{
      {"", [] {}}, {", behind 1,000 nodes", [&] { many.graph->replay(); }}};
  for (const int64_t nodes : {10, 100, 1000}) {
    const Launches one(nodes);
    for (const auto& [words, first] : before) {
      double ours = 1e9, bare = 1e9;
      for (int turn = 0; turn < 5; ++turn) {
        ours = std::min(
            ours, hostMicroseconds([&] { (void)one.runtime->run("step", one.inputs); }, first));
        bare = std::min(bare, hostMicroseconds([&] { one.graph->replay(); }, first));
      }
      WARN("us, " << nodes << " nodes" << words << ": a step " << ours << ", CUDAGraph::replay "
                  << bare << ", over it " << ours - bare);
    }
  }
}
