#include "python/csrc/shadow.h"

#include "ir/core/location.h"
#include "ir/core/nested_nodes.h"
#include "ir/facts/op_facts.h"
#include "python/csrc/first_difference.h"
#include "python/csrc/input_copies.h"
#include "python/csrc/planning/load_options.h"
#include "python/csrc/process/interrupts.h"
#include "runtime/device/rng.h"
#include "runtime/results/bits.h"

#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <utility>

namespace gravure {

namespace {

/// Puts the default generators back, from which an operator may draw without saying so.
class KeptGenerators {
 public:
  explicit KeptGenerators(c10::Device device) {
    keep(c10::kCPU);
    if (!device.is_cpu()) keep(device);
  }
  ~KeptGenerators() {
    try {
      for (const auto& [device, state] : states_) setState(defaultGenerator(device), state);
    } catch (...) {  // where the GPU is lost: what runs next says so
    }
  }
  KeptGenerators(const KeptGenerators&) = delete;
  KeptGenerators& operator=(const KeptGenerators&) = delete;

 private:
  void keep(c10::Device device) { states_.emplace_back(device, stateOf(defaultGenerator(device))); }

  std::vector<std::pair<c10::Device, at::Tensor>> states_;
};

/// One that comes twice says nothing more.
bool isAssertion(const Node* node) {
  const std::string name = node->kind().toQualString();
  return name.find("assert") != std::string::npos || name.find("constrain") != std::string::npos;
}

/// Operators that are not PyTorch's own, the first few: where they are.
std::string foreignCalls(const Entry& entry) {
  static const std::set<std::string> known{"aten", "prim", "prims", "rngprims", "cudagraph"};
  constexpr size_t kMost = 3;
  std::vector<std::string> found;
  forEachNode(entry.graph->block(), [&](const Node* node) {
    const bool foreign = known.count(node->kind().ns().toUnqualString()) == 0;
    if (foreign && found.size() < kMost) found.push_back(describeWithModule(node));
  });
  return c10::Join(", ", found);
}

std::string firstLine(const std::exception& error) {
  const auto* ours = dynamic_cast<const c10::Error*>(&error);
  const std::string text = ours ? ours->what_without_backtrace() : error.what();
  return text.substr(0, text.find('\n'));
}

std::string nameOf(const OutputInfo& output, size_t index) {
  const std::string role =
      output.role == OutputRole::Unspecified ? "result" : roleName(output.role);
  return output.name.empty() ? role + " " + std::to_string(index) : role + " " + output.name;
}

}  // namespace

Shadow::Shadow(Program program, std::string device, PassOptions options, bool poison, int64_t each)
    : program_(std::move(program)), device_(std::move(device)), options_(std::move(options)),
      poison_(poison), each_(each) {}

/// Why no second run of the entry is possible; "" if it is.
std::string Shadow::excuse(const Entry& entry) const {
  std::string why;
  forEachNode(entry.graph->block(), [&](const Node* node) {
    const OpFacts& facts = factsOf(node);
    if (!why.empty()) return;
    if (facts.collective) {
      why = describeWithSource(node) + " communicates with other ranks, which would wait for it";
    } else if (facts.effects && !isAssertion(node)) {
      why = describeWithSource(node) + " has an effect, which would come twice";
    }
  });
  return why;
}

void Shadow::skip(const std::string& entry, const std::string& why, Remarks& remarks) {
  // An error names sizes and addresses, which differ from run to run.
  const std::string what = why.substr(0, why.find_first_of("0123456789"));
  if (!said_.insert(entry + what).second) return;
  remarks.add(RemarkKind::Missed, "runtime", "shadow-skipped",
              "a run of entry " + entry + " is not compared with the uncaptured path: " + why);
}

Runtime& Shadow::reference(const Program& emitted) {
  if (!reference_) {
    RuntimeOptions options;
    options.uncaptured = true;
    options.isInterrupt = &isInterrupt;
    reference_ = std::make_unique<Runtime>(emitted.clone(), makeDevice(device_, poison_),
                                           std::move(options));
  }
  return *reference_;
}

std::optional<Shadow::Run> Shadow::begin(const Program& emitted, const std::string& name,
                                         const std::vector<c10::IValue>& inputs, Remarks& remarks) {
  const int64_t number = ++runs_[name];
  if (number % each_ != 0) return std::nullopt;
  const Entry* const source = program_.find(name);
  const Entry* const entry = emitted.find(name);
  TORCH_INTERNAL_ASSERT(source && entry);
  if (const std::string why = excuse(*source); !why.empty()) {
    skip(name, why, remarks);
    return std::nullopt;
  }
  Run run{name, number, inputs, {}, {}, {}};
  const c10::AutoGradMode noGraph(false);
  try {
    Runtime& other = reference(emitted);
    const c10::Device device = other.device().tensorDevice();
    const std::vector<size_t> drawn = drawnInputs(*entry);
    run.after = copiesOf(inputs, drawn, device);
    const KeptGenerators generators(device);
    const auto begin = std::chrono::steady_clock::now();
    run.expected = other.run(name, run.after);
    run.time = std::chrono::steady_clock::now() - begin;
    run.before.resize(inputs.size());
    std::vector<size_t> unchanged;  // of saved values
    for (size_t i = 0; i < inputs.size(); ++i) {
      const bool saved = entry->inputs[i].role == InputRole::Saved;
      const bool drawnFrom = entry->inputs[i].role == InputRole::RngState;
      if (drawnFrom || !firstDifference(inputs[i], run.after[i]).empty()) {
        run.before[i] = inputs[i];
      } else if (saved) {
        unchanged.push_back(i);
      }
      if (saved) run.given[i] = c10::IValue();
    }
    run.before = copiesOf(run.before, drawn, device);
    for (size_t i : unchanged) run.before[i] = run.after[i];
  } catch (const std::exception& error) {
    if (isInterrupt(error)) throw;
    skip(name, firstLine(error), remarks);
    return std::nullopt;
  }
  return run;
}

/// How the operator is known at which the difference begins, and what to do.
std::string Shadow::originOf(const Run& run) {
  std::vector<c10::IValue> inputs = run.before;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].isNone()) inputs[i] = run.given[i];
  }
  try {
    const KeptGenerators generators(reference_->device().tensorDevice());
    const auto found = findDifferentValue(program_, run.entry, inputs, device_, options_, poison_);
    const std::string foreign = found ? "" : foreignCalls(*program_.find(run.entry));
    if (!foreign.empty()) {
      return "no value differs when it is captured now, so what an operator found on the host when "
             "it was captured, a number of Python's or a clock, may be another one since: look "
             "at " +
             foreign + ", make it take a tensor, or name it in options={\"host\": […]}";
    }
    if (!found) {
      return "no value differs when each is kept, so it is the memory that captured steps share, "
             "or work on another stream; report it with the program";
    }
    const std::string first =
        "the first value that differs is " + found->value + " " + found->difference;
    if (!found->repeats) {
      return first + "; two uncaptured runs differ there as well: it draws, keeps a state of its "
                     "own, or adds in any order (torch.use_deterministic_algorithms(True) tells)";
    }
    return first + "; leave it out of graphs with options={\"host\": [\"" + found->operatorName +
           "\"]}, and make it read nothing but its arguments";
  } catch (const std::exception& error) {
    if (isInterrupt(error)) throw;
    return "where it begins cannot be told: " + firstLine(error);
  }
}

void Shadow::compare(const Run& run, const std::vector<c10::IValue>& results, Remarks& remarks) {
  const c10::AutoGradMode noGraph(false);
  ++compared_;
  const Entry& entry = *reference_->program().find(run.entry);
  std::string what, difference;
  size_t also = 0;
  const auto differs = [&](const std::string& name, const c10::IValue& a, const c10::IValue& b) {
    const std::string found = firstDifference(a, b);
    if (found.empty()) return;
    if (what.empty()) {
      what = name;
      difference = found;
    } else {
      ++also;
    }
  };
  const auto values = program_.find(run.entry)->graph->outputs();
  for (size_t o = 0; o < results.size(); ++o) {
    // Accumulated gradients are no results of what runs.
    if (values.size() == results.size() && maybeUnwritten(values[o])) continue;
    differs(nameOf(entry.outputs[o], o), results[o], run.expected[o]);
  }
  for (size_t i = 0; i < run.given.size(); ++i) {
    if (run.given[i].isNone() || run.given[i].isGenerator()) continue;
    differs("input " + entry.inputs[i].name + ", after the run,", run.given[i], run.after[i]);
  }
  if (what.empty()) return;
  ++different_;
  if (!said_.insert(run.entry + what).second) return;
  Remark& remark = remarks.add(RemarkKind::Missed, "runtime", "shadow-differs", "");
  const std::string origin = originOf(run);
  remark.message = "run " + std::to_string(run.number) + " of entry " + run.entry +
                   " has other bits than the uncaptured path (captured first): " + what + " " +
                   difference;
  if (also > 0) remark.message += "; " + std::to_string(also) + " more differ";
  remark.message += "; " + origin;
}

}  // namespace gravure
