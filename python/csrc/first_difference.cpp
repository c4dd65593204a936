#include "python/csrc/first_difference.h"

#include "ir/core/location.h"
#include "ir/facts/op_facts.h"
#include "passes/pipeline/program_plan.h"
#include "python/csrc/input_copies.h"
#include "python/csrc/planning/load_options.h"
#include "runtime/results/bits.h"
#include "runtime/runtime.h"

#include <ATen/core/jit_type.h>
#include <llvm/ADT/STLExtras.h>

#include <algorithm>
#include <map>
#include <utility>

namespace gravure {

namespace {

constexpr size_t kMostTaps = 256;  // values that are results at once
constexpr int kMostWarmUps = 8;

/// A value of the entry, by its position among its nodes, which every clone has.
struct Tap {
  size_t node, output;
};

std::vector<Node*> nodesOf(const Entry& entry) {
  std::vector<Node*> nodes;
  for (Node* node : entry.graph->nodes()) nodes.push_back(node);
  return nodes;
}

bool canTap(const Value* value) {
  return value->type()->kind() == c10::TypeKind::TensorType && !maybeUnwritten(value);
}

std::vector<Tap> tapsOf(const Entry& entry) {
  std::vector<Tap> taps;
  const std::vector<Node*> nodes = nodesOf(entry);
  for (size_t n = 0; n < nodes.size(); ++n) {
    for (size_t o = 0; o < nodes[n]->outputs().size(); ++o) {
      if (canTap(nodes[n]->output(o))) taps.push_back({n, o});
    }
  }
  return taps;
}

/// Sizes without strides: a copy of what is not dense has others.
c10::TypePtr typeOfCopy(const Value* value) {
  const auto type = value->type()->expect<c10::TensorType>();
  return c10::TensorType::create(type->scalarType(), type->device(), type->symbolic_sizes(),
                                 c10::VaryingShape<c10::Stride>(type->dim()), std::nullopt);
}

/// A program of that entry alone, whose last results are copies of the values at `taps`, made where
/// the values are.
Program tapped(const Entry& source, const std::vector<Tap>& taps) {
  Program alone;
  alone.entries.push_back(source);
  Program program = alone.clone();
  Entry& entry = program.entries.front();
  for (InputInfo& input : entry.inputs) {
    if (input.role == InputRole::Saved) input.role = InputRole::UserInput;
  }
  for (OutputInfo& output : entry.outputs) {
    if (output.role == OutputRole::Saved) output.role = OutputRole::Output;
  }
  const std::vector<Node*> nodes = nodesOf(entry);
  for (size_t i = 0; i < taps.size(); ++i) {
    Node* const node = nodes[taps[i].node];
    Value* const value = node->output(taps[i].output);
    Node* const copy = entry.graph->create(c10::aten::clone, {value}, 1);
    copy->output()->setType(typeOfCopy(value));
    copy->insertAfter(node);
    copyLocation(copy, node);
    entry.graph->registerOutput(copy->output());
    entry.outputs.push_back({OutputRole::Output, "tap." + std::to_string(i), -1});
  }
  return program;
}

/// Runs the tapped entry on one path.
class TappedRun {
 public:
  TappedRun(const Program& program, const std::string& device, const PassOptions& options,
            bool poison, bool uncaptured)
      : name_(program.entries.front().name) {
    std::unique_ptr<Device> made = makeDevice(device, poison);
    Program emitted = program.clone();
    PassContext context;
    context.options = options;
    context.options.alignment = made->alignment();
    context.options.accumulateGradients = false;  // its buffers are inputs already, or results
    planProgram(emitted, context);
    RuntimeOptions runtime;
    runtime.uncaptured = uncaptured;
    runtime.results = ResultPolicy::Copied;
    runtime_ = std::make_unique<Runtime>(std::move(emitted), std::move(made), std::move(runtime));
    drawn_ = drawnInputs(runtime_->program().entries.front());
  }

  /// The results with `inputs`, of whose values the last `taps` are returned.
  std::vector<c10::IValue> run(const std::vector<c10::IValue>& inputs, size_t taps, bool captures) {
    const c10::Device device = runtime_->device().tensorDevice();
    const auto own = copiesOf(inputs, drawn_, device);
    for (int i = 0; captures && i < kMostWarmUps && runtime_->stats().captures == 0; ++i) {
      turn(own);
      (void)runtime_->run(name_, own);
      refill(own, inputs);
    }
    std::vector<c10::IValue> results = runtime_->run(name_, own);
    return {results.end() - static_cast<int64_t>(taps), results.end()};
  }

 private:
  std::string name_;
  std::unique_ptr<Runtime> runtime_;
  std::vector<size_t> drawn_;
};

}  // namespace

bool maybeUnwritten(const Value* value) {
  const auto* type = value->type()->castRaw<c10::TensorType>();
  const bool integer =
      type && type->scalarType() && c10::isIntegralType(*type->scalarType(), false);
  const std::string name = value->node()->kind().toQualString();
  return integer && name.find("attention") != std::string::npos;
}

std::string describeWithModule(const Node* node) {
  const std::string_view module = moduleOf(node);
  return describeWithSource(node) + (module.empty() ? "" : " in " + std::string(module));
}

std::optional<DifferentValue> findDifferentValue(const Program& program, const std::string& name,
                                                 const std::vector<c10::IValue>& inputs,
                                                 const std::string& device,
                                                 const PassOptions& options, bool poison) {
  const Entry* entry = program.find(name);
  TORCH_INTERNAL_ASSERT(entry);
  const std::vector<Node*> nodes = nodesOf(*entry);
  std::vector<Tap> candidates = tapsOf(*entry);
  std::optional<DifferentValue> found;
  while (!candidates.empty()) {
    const size_t stride = (candidates.size() + kMostTaps - 1) / kMostTaps;
    std::vector<Tap> taps;  // the last of each group
    for (size_t i = stride - 1; i < candidates.size(); i += stride) taps.push_back(candidates[i]);
    if (candidates.size() % stride != 0) taps.push_back(candidates.back());
    const Program with = tapped(*entry, taps);
    TappedRun reference(with, device, options, poison, /*uncaptured=*/true);
    const auto expected = reference.run(inputs, taps.size(), false);
    const auto again = reference.run(inputs, taps.size(), false);
    TappedRun captured(with, device, options, poison, /*uncaptured=*/false);
    const auto results = captured.run(inputs, taps.size(), true);
    size_t first = 0;
    std::string difference;
    while (first < taps.size() &&
           (difference = firstDifference(results[first], expected[first])).empty())
      ++first;
    if (first == taps.size()) return found;
    Node* const node = nodes[taps[first].node];
    found = DifferentValue{describeWithModule(node), node->kind().toQualString(), difference,
                           firstDifference(again[first], expected[first]).empty()};
    if (stride == 1) return found;
    const size_t begin = first * stride;
    const size_t end = std::min(begin + stride, candidates.size());
    candidates = std::vector<Tap>(candidates.begin() + static_cast<int64_t>(begin),
                                  candidates.begin() + static_cast<int64_t>(end));
  }
  return found;
}

}  // namespace gravure
