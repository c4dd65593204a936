#include "tools/gravure/proof/proof.h"

#include "ir/core/cudagraph_ops.h"
#include "ir/core/nested_nodes.h"
#include "ir/facts/op_facts.h"
#include "runtime/device/rng.h"
#include "runtime/program/collectives.h"
#include "runtime/results/bits.h"
#include "runtime/runtime.h"

#include <ATen/CPUGeneratorImpl.h>
#include <llvm/ADT/STLExtras.h>
#include <llvm/ADT/StringRef.h>

namespace gravure::tool {
namespace {

bool hasNode(const Program& program, const std::function<bool(const Node*)>& is) {
  bool found = false;
  for (const Entry& entry : program.entries) {
    forEachNode(entry.graph->block(), [&](const Node* node) { found |= is(node); });
  }
  return found;
}

c10::IValue copyOf(const c10::IValue& value) {
  if (value.isTensor() && value.toTensor().defined()) return value.toTensor().clone();
  if (!value.isTensorList()) return value;
  std::vector<at::Tensor> copies;
  for (const at::Tensor& member : value.toTensorVector()) copies.push_back(member.clone());
  return copies;
}

bool sharesMemory(const c10::IValue& a, const c10::IValue& b) {
  bool shares = false;
  forEachTensor(a, [&](const at::Tensor& left) {
    forEachTensor(b, [&](const at::Tensor& right) { shares |= shareMemory(left, right); });
  });
  return shares;
}

/// `loss`, `gradient "w"`, `mutation of buffer "b"`; a number behind it for the second of that name.
std::vector<std::string> outputLabels(const Entry& entry) {
  std::vector<std::string> labels;
  std::map<std::string, int> seen;
  for (const OutputInfo& info : entry.outputs) {
    std::string label = roleName(info.role);
    if (label.empty()) label = "output";
    if (info.input >= 0) {
      label += " of " + inputLabel(entry, static_cast<size_t>(info.input));
    } else if (!info.name.empty()) {
      label += " \"" + info.name + "\"";
    }
    const int times = ++seen[label];
    labels.push_back(label + (times > 1 ? " #" + std::to_string(times) : ""));
  }
  return labels;
}

bool isCallersOwn(const OutputInfo& info) { return info.input >= 0; }

/// What shares memory among the values of an entry, by label.
std::set<std::pair<std::string, std::string>>
sharedPairs(const std::map<std::string, c10::IValue>& inputs,
            const std::map<std::string, c10::IValue>& outputs) {
  std::set<std::pair<std::string, std::string>> pairs;
  for (auto a = outputs.begin(); a != outputs.end(); ++a) {
    for (const auto& [label, value] : inputs) {
      if (sharesMemory(a->second, value)) pairs.emplace(a->first, label);
    }
    for (auto b = std::next(a); b != outputs.end(); ++b) {
      if (sharesMemory(a->second, b->second)) pairs.emplace(a->first, b->first);
    }
  }
  return pairs;
}

bool share(const ObservedEntry& entry, const std::string& a, const std::string& b) {
  return entry.shared.count({a, b}) || entry.shared.count({b, a});
}

/// The caller's own writes between two entries, where the given program leaves him free to.
void writeAsCaller(const ObservedEntry& given, const std::map<std::string, c10::IValue>& inputs,
                   const std::map<std::string, c10::IValue>& outputs,
                   const std::set<std::string>& readLater) {
  const auto isFree = [&](const std::string& label) {
    for (const auto& [other, info] : given.roles) {
      if (info.role == OutputRole::Saved && (other == label || share(given, other, label)))
        return false;
    }
    for (const auto& [input, value] : given.inputs) {
      const bool keeps = !llvm::StringRef(input).starts_with("input user_input") ||
                         readLater.count(input.substr(6));
      if (keeps && (input == label || share(given, input, label))) return false;
    }
    return true;
  };
  const auto write = [&](const std::string& label, const c10::IValue& value) {
    if (isFree(label)) forEachTensor(value, poison);
  };
  for (const auto& [label, value] : outputs) write(label, value);
  for (const auto& [label, value] : inputs) write(label, value);
}

std::set<std::string> readBehind(const Program& program, size_t index) {
  std::set<std::string> labels;
  for (size_t e = index + 1; e < program.entries.size(); ++e) {
    for (size_t i = 0; i < program.entries[e].inputs.size(); ++i)
      labels.insert(inputLabel(program.entries[e], i));
  }
  return labels;
}

void keepSaved(const Entry& entry, const std::vector<c10::IValue>& outputs,
               std::map<std::string, c10::IValue>& saved) {
  for (size_t o = 0; o < entry.outputs.size(); ++o) {
    if (entry.outputs[o].role == OutputRole::Saved) saved[entry.outputs[o].name] = outputs.at(o);
  }
}

void fillSaved(const Entry& entry, const std::map<std::string, c10::IValue>& saved,
               std::vector<c10::IValue>& inputs) {
  for (size_t i = 0; i < entry.inputs.size(); ++i) {
    if (entry.inputs[i].role != InputRole::Saved) continue;
    const auto found = saved.find(entry.inputs[i].name);
    TORCH_CHECK(found != saved.end(), "entry '", entry.name, "' reads the saved value '",
                entry.inputs[i].name, "', which no entry before it returns");
    inputs[i] = found->second;
  }
}

/// Runs all entries of one step by `runEntry(entry, inputs)`; `given`: what the given program did, for
/// what the caller writes in between; nullptr for that program itself.
template <typename RunEntry>
ObservedStep observeStep(const Program& program, InputSide& side, int64_t step, uint64_t seed,
                         const std::vector<ObservedEntry>* given, RunEntry&& runEntry) {
  ObservedStep observed;
  side.beginStep(step);
  at::Generator generator = defaultGenerator(c10::kCPU);
  generator.set_current_seed(seed);
  std::map<std::string, c10::IValue> saved, generators;
  std::vector<std::vector<c10::IValue>> alive;  // results that the caller holds until the step ends
  for (size_t e = 0; e < program.entries.size(); ++e) {
    const Entry& entry = program.entries[e];
    std::vector<c10::IValue> inputs = side.inputsOf(entry);
    fillSaved(entry, saved, inputs);
    alive.push_back(runEntry(entry, inputs));
    const std::vector<c10::IValue>& outputs = alive.back();
    ObservedEntry seen;
    std::map<std::string, c10::IValue> inputsByLabel, outputsByLabel;
    const std::vector<std::string> labels = outputLabels(entry);
    for (size_t o = 0; o < outputs.size(); ++o) {
      outputsByLabel[labels[o]] = outputs[o];
      seen.roles[labels[o]] = entry.outputs[o];
      // A saved value may hold bytes that no kernel wrote; what is read of it shows behind.
      if (entry.outputs[o].role != OutputRole::Saved) seen.outputs[labels[o]] = copyOf(outputs[o]);
    }
    for (size_t i = 0; i < inputs.size(); ++i) {
      const std::string label = "input " + inputLabel(entry, i);
      if (inputs[i].isGenerator()) generators[label] = inputs[i];
      if (entry.inputs[i].role == InputRole::Saved) continue;  // lent, and gone now
      inputsByLabel[label] = inputs[i];
      if (!inputs[i].isGenerator()) seen.inputs[label] = copyOf(inputs[i]);
    }
    seen.shared = sharedPairs(inputsByLabel, outputsByLabel);
    keepSaved(entry, outputs, saved);
    observed.entries.push_back(std::move(seen));
    if (e + 1 == program.entries.size()) break;
    writeAsCaller(given ? given->at(e) : observed.entries.back(), inputsByLabel, outputsByLabel,
                  readBehind(program, e));
  }
  observed.generators.push_back(stateOf(generator));
  for (const auto& [label, value] : generators)
    observed.generators.push_back(stateOf(value.toGenerator()));
  return observed;
}

std::string differentOutputs(const ObservedEntry& before, const ObservedEntry& after) {
  for (const auto& [label, value] : before.outputs) {
    const auto found = after.outputs.find(label);
    if (found != after.outputs.end()) {
      const std::string why = firstDifference(value, found->second);
      if (!why.empty()) return label + " " + why;
      continue;
    }
    // accumulate-gradients adds it to a buffer, whose value before is drawn, too.
    const OutputInfo& info = before.roles.at(label);
    const bool accumulated = info.role == OutputRole::Gradient &&
                             after.inputs.count("input buffer \"" + info.name + ".grad\"");
    if (!accumulated) return label + " is no result any more";
  }
  for (const auto& [label, info] : after.roles) {
    if (!before.roles.count(label)) return label + " is a new result";
  }
  return "";
}

std::string differentInputs(const ObservedEntry& before, const ObservedEntry& after) {
  for (const auto& [label, value] : before.inputs) {
    const auto found = after.inputs.find(label);
    if (found == after.inputs.end()) return label + " is no input any more";
    const std::string why = firstDifference(value, found->second);
    if (!why.empty()) return label + ", after the entry ran, " + why;
  }
  return "";
}

std::string differentSharing(const ObservedEntry& before, const ObservedEntry& after) {
  const auto isSaved = [&](const std::string& label) {
    const auto found = after.roles.find(label);
    return found != after.roles.end() && found->second.role == OutputRole::Saved;
  };
  for (const auto& [a, b] : after.shared) {
    if (share(before, a, b) || (isSaved(a) && isSaved(b))) continue;
    return a + " and " + b + " share memory, which they did not before";
  }
  for (const auto& [a, b] : before.shared) {
    const bool own =
        isCallersOwn(before.roles.at(a)) && b.starts_with("input ") && a.ends_with(b.substr(6));
    if (own && !share(after, a, b)) return a + " is not that tensor any more";
  }
  return "";
}

std::string differentLists(const char* what, const std::vector<std::string>& before,
                           const std::vector<std::string>& after) {
  for (size_t i = 0; i < std::max(before.size(), after.size()); ++i) {
    const std::string a = i < before.size() ? before[i] : "nothing";
    const std::string b = i < after.size() ? after[i] : "nothing";
    if (a != b) return std::string(what) + " " + std::to_string(i) + ": " + a + " and " + b;
  }
  return "";
}

}  // namespace

struct Proof::References {
  References(const DrawnInputs& drawn, const Program& given, AsyncCollectives* collectives,
             bool lateCopies)
      : run(given.clone(), collectives, lateCopies), side(drawn) {}
  NodeRun run;
  InputSide side;
  std::map<std::pair<int64_t, CollectiveReads>, ObservedStep> steps;
};

Proof::~Proof() = default;

Proof::Proof(const Program& given, const ProofOptions& options, const SavedInputs* saved)
    : options_(options), drawn_(given, options.seed, saved), given_(given.clone()) {
  const bool communicates =
      hasNode(given_, [](const Node* node) { return factsOf(node).collective; });
  if (communicates) collectives_ = std::make_unique<AsyncCollectives>(CollectiveReads::AtStart);
  std::string why;
  for (int attempt = 0; attempt < options.attempts; ++attempt) {
    drawn_.setAttempt(static_cast<uint64_t>(attempt));
    try {
      runGiven();
      return;
    } catch (const c10::Error& error) {
      if (why.empty()) why = error.what_without_backtrace();
    }
  }
  TORCH_CHECK(false, "nothing can be proven of this program as it was given: ", why);
}

/// The given program must not depend on what is left open: then nothing is a difference.
void Proof::runGiven() {
  lateCopies_ = options_.lateCopies;
  references_ = std::make_unique<References>(drawn_, given_, collectives_.get(), lateCopies_);
  const ObservedStep late = reference(0, CollectiveReads::AtStart);
  references_ = std::make_unique<References>(drawn_, given_, collectives_.get(), false);
  const ObservedStep& plain = reference(0, CollectiveReads::AtStart);
  for (size_t e = 0; e < plain.entries.size(); ++e) {
    if (!differentOutputs(plain.entries[e], late.entries[e]).empty() ||
        !differentInputs(plain.entries[e], late.entries[e]).empty())
      lateCopies_ = false;  // it reads them too early itself
  }
  references_ = std::make_unique<References>(drawn_, given_, collectives_.get(), lateCopies_);
}

const ObservedStep& Proof::reference(int64_t step, CollectiveReads reads) {
  const auto key = std::make_pair(step, reads);
  auto found = references_->steps.find(key);
  if (found == references_->steps.end()) {
    ObservedStep observed = observe(references_->run, references_->side, step, reads, nullptr);
    TORCH_CHECK(observed.violations.empty(), observed.violations.front());
    found = references_->steps.emplace(key, std::move(observed)).first;
  }
  return found->second;
}

ObservedStep Proof::observe(NodeRun& run, InputSide& side, int64_t step, CollectiveReads reads,
                            const std::vector<ObservedEntry>* given) {
  if (collectives_) collectives_->setReads(reads);
  run.beginStep();
  ObservedStep observed =
      observeStep(run.program(), side, step, drawn_.seedOf(step), given,
                  [&](const Entry& entry, const std::vector<c10::IValue>& inputs) {
                    return run.run(entry, inputs);
                  });
  observed.effects = run.effects();
  observed.collectiveCalls = run.collectiveCalls();
  observed.violations = run.violations();
  observed.mistyped = run.mistyped();
  return observed;
}

namespace {

/// An accumulated gradient: the buffer before, as drawn, and the gradient of the given program.
std::string differentGradients(const DrawnInputs& drawn, int64_t step, const Entry& entry,
                               const ObservedEntry& before, const ObservedEntry& after) {
  for (size_t i = 0; i < entry.inputs.size(); ++i) {
    const std::string label = "input " + inputLabel(entry, i);
    const llvm::StringRef name(entry.inputs[i].name);
    if (entry.inputs[i].role != InputRole::Buffer || before.inputs.count(label)) continue;
    if (!name.ends_with(".grad")) continue;
    const auto gradient = before.outputs.find("gradient \"" + name.drop_back(5).str() + "\"");
    if (gradient == before.outputs.end()) continue;
    const at::Tensor expected =
        drawn.draw(entry, i, step).toTensor().add_(gradient->second.toTensor());
    const std::string why = firstDifference(expected, after.inputs.at(label));
    if (!why.empty()) return label + ", after the entry ran, " + why;
  }
  return "";
}

std::string difference(const DrawnInputs& drawn, int64_t step, const Program& program,
                       const ObservedStep& before, const ObservedStep& after) {
  const std::string where = "step " + std::to_string(step);
  if (before.entries.size() != after.entries.size()) return "another number of entries";
  if (!after.violations.empty()) return where + ": " + after.violations.front();
  for (size_t e = 0; e < before.entries.size(); ++e) {
    const ObservedEntry &a = before.entries[e], &b = after.entries[e];
    std::string why = differentOutputs(a, b);
    if (why.empty()) why = differentInputs(a, b);
    if (why.empty()) why = differentSharing(a, b);
    if (why.empty()) why = differentGradients(drawn, step, program.entries[e], a, b);
    if (!why.empty()) return where + ", entry '" + program.entries[e].name + "': " + why;
  }
  for (size_t g = 0; g < before.generators.size() && g < after.generators.size(); ++g) {
    if (!firstDifference(before.generators[g], after.generators[g]).empty())
      return where + ": a generator was left in another state";
  }
  return "";
}

}  // namespace

std::string Proof::differenceByNodes(const Program& program, CollectiveReads reads) {
  NodeRun run(program.clone(), collectives_.get(), lateCopies_);
  InputSide side(drawn_);
  for (int64_t step = 0; step < options_.steps; ++step) {
    const ObservedStep& before = reference(step, reads);
    ObservedStep after;
    try {
      after = observe(run, side, step, reads, &before.entries);
    } catch (const c10::Error& error) {
      return "step " + std::to_string(step) + ": it throws: " + error.what_without_backtrace();
    }
    std::string why = difference(drawn_, step, program, before, after);
    if (why.empty()) {
      why = differentLists("effect", before.effects, after.effects);
      if (why.empty())
        why = differentLists("collective", before.collectiveCalls, after.collectiveCalls);
      if (!why.empty()) why = "step " + std::to_string(step) + ": " + why;
    }
    for (const auto& [name, how] : after.mistyped) {
      if (why.empty() && before.mistyped.empty()) why = "%" + name + " is " + how;
    }
    if (!why.empty()) return why;
  }
  return "";
}

std::string Proof::differenceByRuntime(const Program& program, CollectiveReads reads) {
  InputSide side(drawn_);
  std::unique_ptr<Runtime> runtime;
  try {
    runtime = std::make_unique<Runtime>(program.clone(), makeHostDevice(/*poison=*/true));
  } catch (const c10::Error& error) {
    return std::string("the runtime refuses it: ") + error.what_without_backtrace();
  }
  for (int64_t step = 0; step < options_.runtimeSteps; ++step) {
    if (step == options_.runtimeSteps / 2) {
      side.moveKept();
      runtime->dropCaptures();
    }
    const ObservedStep& before = reference(step, reads);
    if (collectives_) {
      collectives_->setReads(reads);
      collectives_->forget();
    }
    ObservedStep after;
    try {
      after = observeStep(program, side, step, drawn_.seedOf(step), &before.entries,
                          [&](const Entry& entry, std::vector<c10::IValue> inputs) {
                            return runtime->run(entry.name, std::move(inputs));
                          });
    } catch (const std::exception& error) {
      const auto* ours = dynamic_cast<const c10::Error*>(&error);
      return "with the runtime, step " + std::to_string(step) +
             ": it throws: " + (ours ? ours->what_without_backtrace() : error.what());
    }
    if (collectives_) after.violations = collectives_->violations();
    const std::string why = difference(drawn_, step, program, before, after);
    if (!why.empty()) return "with the runtime, " + why;
  }
  return "";
}

std::string Proof::differenceOf(const Program& program) {
  std::vector<CollectiveReads> times{CollectiveReads::AtStart};
  if (collectives_) times.push_back(CollectiveReads::AtWait);
  for (const CollectiveReads reads : times) {
    std::string why = differenceByNodes(program, reads);
    if (why.empty() && options_.runtimeSteps > 0 && isEmitted(program))
      why = differenceByRuntime(program, reads);
    if (!why.empty()) return why;
  }
  return "";
}

}  // namespace gravure::tool
