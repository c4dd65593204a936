#include "python/csrc/loaded_program.h"

#include "ir/check/verify.h"
#include "ir/core/location.h"
#include "ir/memory/memory_map.h"
#include "ir/text/program_text.h"
#include "passes/report/step_detail.h"
#include "python/csrc/autograd/saved_bundle.h"
#include "python/csrc/autograd/watched_values.h"
#include "python/csrc/collector_off.h"
#include "python/csrc/direct_calls.h"
#include "python/csrc/planning/load_options.h"
#include "python/csrc/planning/planned_program.h"
#include "python/csrc/planning/planning.h"
#include "python/csrc/process/interrupts.h"
#include "runtime/device/step_mark.h"
#include "runtime/device/step_scope.h"
#include "runtime/program/guards.h"
#include "runtime/program/input_memory.h"

#include <c10/util/ScopeExit.h>
#include <llvm/ADT/SmallVector.h>
#include <llvm/Support/JSON.h>
#include <llvm/Support/raw_ostream.h>

#include <algorithm>
#include <chrono>
#include <set>
#include <thread>
#include <utility>

namespace gravure {

namespace {

using Described = std::vector<std::tuple<std::string, std::string>>;

template <typename Infos>
Described describeAll(const Infos& infos) {
  Described described;
  for (const auto& info : infos) described.emplace_back(roleName(info.role), info.name);
  return described;
}

const char* stateName(PartitionState state) {
  switch (state) {
    case PartitionState::Cold: return "cold";
    case PartitionState::WarmedUp: return "warmed-up";
    case PartitionState::Captured: return "captured";
    case PartitionState::Quarantined: return "quarantined";
  }
  return "";
}

std::vector<at::Tensor> asTensors(std::vector<c10::IValue> values) {
  std::vector<at::Tensor> tensors;
  tensors.reserve(values.size());
  for (c10::IValue& value : values) tensors.push_back(std::move(value).toTensor());
  return tensors;
}

/// Programs with collectives in partitions. Programs come and go on any thread.
struct Communicating {
  std::mutex mutex;
  std::set<LoadedProgram*> programs;

  static Communicating& all() {
    static Communicating* const all = new Communicating;  // programs may outlive static objects
    return *all;
  }
};

}  // namespace

LoadedProgram::LoadedProgram(const std::string& path, const std::string& device,
                             const Options& options)
    : LoadedProgram(ProgramSource{path, ""}, device, parseLoadOptions(options)) {}

c10::intrusive_ptr<LoadedProgram>
LoadedProgram::ofText(const std::string& text, const std::string& device, const Options& options) {
  return c10::make_intrusive<LoadedProgram>(ProgramSource{"", text}, device,
                                            parseLoadOptions(options));
}

struct LoadedProgram::Planned {
  std::string device;
  LoadOptions options;
  std::optional<Program> given;  // as it was before any pass, where shadows compare with it
  PassOptions passes;            // as the passes had them
  Remarks remarks;               // of the passes
  std::string partitionPlan;
  std::map<std::string, SharedVersions> versions;  // by entry
};

LoadedProgram::LoadedProgram(const ProgramSource& source, const std::string& device,
                             const LoadOptions& options) {
  Program program = source.path.empty() ? readProgram(source.text) : readProgramFile(source.path);
  std::unique_ptr<Device> made = makeDevice(device, options.poison);
  verifyProgram(program);
  planned_ = planned(program, source, device, options, made->alignment());
  begin(std::make_unique<Runtime>(std::move(program), std::move(made), runtimeOptions()));
}

LoadedProgram::LoadedProgram(std::shared_ptr<const Planned> planned, const Runtime& runtime)
    : planned_(std::move(planned)) {
  begin(std::make_unique<Runtime>(runtime, makeDevice(planned_->device, planned_->options.poison),
                                  runtimeOptions()));
}

c10::intrusive_ptr<LoadedProgram> LoadedProgram::again() const {
  return c10::make_intrusive<LoadedProgram>(planned_, *runtime_);
}

/// `program` is as the passes leave it then.
std::shared_ptr<const LoadedProgram::Planned>
LoadedProgram::planned(Program& program, const ProgramSource& source, const std::string& device,
                       const LoadOptions& options, int64_t alignment) {
  auto planned = std::make_shared<Planned>();
  planned->device = device;
  planned->options = options;
  if (options.shadow > 0) planned->given = program.clone();
  for (const Entry& entry : program.entries) planned->versions.emplace(entry.name, entry);
  PassContext passes;
  passes.options = options.passes;
  passes.options.alignment = alignment;
  planned->partitionPlan = planText(program, planOrReproduce(program, passes, source));
  for (const Entry& entry : program.entries) planned->versions.at(entry.name).follow(entry);
  if (options.requireNodes) requireAllCaptured(program, passes);
  planned->passes = passes.options;
  planned->remarks = std::move(passes.remarks);
  logMissed(planned->remarks, 0);
  return planned;
}

RuntimeOptions LoadedProgram::runtimeOptions() {
  RuntimeOptions options = planned_->options.runtime;
  options.refuseShared = true;
  options.onCapture = [this](const std::string& entry, int64_t done, int64_t total) {
    progress_.show(entry, done, total);
  };
  options.isInterrupt = &isInterrupt;
  options.whileCapturing = &collectorOff;
  return options;
}

void LoadedProgram::begin(std::unique_ptr<Runtime> runtime) {
  runtime_ = std::move(runtime);
  const LoadOptions& options = planned_->options;
  if (planned_->given) {
    shadow_ = std::make_unique<Shadow>(planned_->given->clone(), planned_->device, options.passes,
                                       options.poison, options.shadow);
  }
  if (options.times) timed_ = std::make_unique<TimedRuns>();
  makeBound();
  if (!runtime_->communicates()) return;
  const std::lock_guard lock(Communicating::all().mutex);
  Communicating::all().programs.insert(this);
}

LoadedProgram::~LoadedProgram() {
  if (!runtime_->communicates()) return;
  const std::lock_guard lock(Communicating::all().mutex);
  Communicating::all().programs.erase(this);
}

void LoadedProgram::dropCollectives(const std::string& group) {
  // Without its lock: what captures keep may be Python's, and whoever has Python's lock may be dropping
  // a program.
  std::vector<c10::intrusive_ptr<LoadedProgram>> programs;
  {
    const std::lock_guard lock(Communicating::all().mutex);
    for (LoadedProgram* each : Communicating::all().programs) {
      auto program = c10::weak_intrusive_ptr<LoadedProgram>::reclaim_copy(each).lock();
      if (program) programs.push_back(std::move(program));
    }
  }
  for (const auto& program : programs) {
    // A thread that hangs in a step would let the process never end.
    const std::unique_lock one(program->mutex_, std::try_to_lock);
    if (one.owns_lock()) {
      program->runtime_->dropCaptures(group);
    } else {
      TORCH_WARN("a program runs while its process groups end; its captures stay");
    }
  }
}

const Entry& LoadedProgram::entry(const std::string& name) const {
  const Entry* found = runtime_->program().find(name);
  TORCH_CHECK(found != nullptr, "the program has no entry '", name, "'; it has ",
              c10::Join(", ", entries()));
  return *found;
}

std::vector<std::string> LoadedProgram::entries() const {
  std::vector<std::string> names;
  for (const Entry& each : runtime_->program().entries) names.push_back(each.name);
  return names;
}

Described LoadedProgram::inputs(const std::string& name) const {
  return describeAll(entry(name).inputs);
}

Described LoadedProgram::outputs(const std::string& name) const {
  return describeAll(entry(name).outputs);
}

/// Made for all entries at once: runs inside of a step only read them.
void LoadedProgram::makeBound() {
  for (const Entry& each : runtime_->program().entries) {
    Bound& fresh = bound_[each.name];
    fresh.entry = &each;
    fresh.versions = &planned_->versions.at(each.name);
    fresh.values.resize(each.inputs.size());
    fresh.open.reserve(fresh.values.size());
    for (size_t i = 0; i < fresh.values.size(); ++i) fresh.open.push_back(static_cast<int64_t>(i));
  }
}

LoadedProgram::Bound& LoadedProgram::bound(const std::string& name) {
  const auto found = bound_.find(name);
  return found != bound_.end() ? found->second : bound_.at(entry(name).name);
}

LoadedProgram::Bound& LoadedProgram::bindingAt(const std::string& name,
                                               const std::vector<int64_t>& positions,
                                               size_t given) {
  TORCH_CHECK(positions.size() == given, "bind: ", positions.size(), " positions for ", given,
              " values");
  Bound& state = bound(name);
  state.update.reset();
  const auto count = static_cast<int64_t>(state.values.size());
  for (int64_t at : positions) {
    TORCH_CHECK(at >= 0 && at < count, "bind: entry ", name, " has ", count,
                " inputs, and none at position ", at);
  }
  for (int64_t at : positions) {
    std::erase(state.open, at);
    std::erase_if(state.weak, [at](const auto& each) { return each.first == at; });
  }
  return state;
}

void LoadedProgram::bind(const std::string& name, const std::vector<int64_t>& positions,
                         const Values& values) {
  const std::lock_guard lock(mutex_);
  Bound& state = bindingAt(name, positions, values.size());
  for (size_t i = 0; i < positions.size(); ++i) state.values[positions[i]] = values.get(i);
}

void LoadedProgram::keepNumbers(const std::string& name, const std::vector<int64_t>& positions) {
  const std::lock_guard lock(mutex_);
  Bound& state = bound(name);
  for (const int64_t at : positions)
    TORCH_CHECK(at >= 0 && at < static_cast<int64_t>(state.values.size()) &&
                    state.values[at].isDouble(),
                "keep_numbers: entry ", name, " has no number bound at position ", at);
  state.numbers = positions;
}

std::vector<double> LoadedProgram::bindNumbers(const std::string& name,
                                               const std::vector<double>& numbers) {
  const std::lock_guard lock(mutex_);
  Bound& state = bound(name);
  TORCH_CHECK(numbers.size() == state.numbers.size(), "bind_numbers: entry ", name, " keeps ",
              state.numbers.size(), " numbers, and was given ", numbers.size());
  state.update.reset();
  for (size_t i = 0; i < numbers.size(); ++i) state.values[state.numbers[i]] = numbers[i];
  return {};
}

void LoadedProgram::bindWeakly(const std::string& name, const std::vector<int64_t>& positions,
                               const std::vector<at::Tensor>& values) {
  const std::lock_guard lock(mutex_);
  Bound& state = bindingAt(name, positions, values.size());
  for (size_t i = 0; i < positions.size(); ++i) {
    state.values[positions[i]] = c10::IValue();
    state.weak.emplace_back(positions[i], values[i].getIntrusivePtr());
  }
}

std::vector<c10::IValue> LoadedProgram::boundValues(const Bound& state, const AliveTensors& alive) {
  std::vector<c10::IValue> values = state.values;
  for (size_t i = 0; i < state.weak.size(); ++i) {
    const int64_t position = state.weak[i].first;
    TORCH_CHECK(alive.tensors()[i].defined(), inputName(*state.entry, position),
                " is bound and gone; bind another one");
    values[position] = alive.tensors()[i];
  }
  return values;
}

void LoadedProgram::bundleOutputs(const std::string& name, const std::vector<int64_t>& positions) {
  const std::lock_guard lock(mutex_);
  const auto count = static_cast<int64_t>(entry(name).outputs.size());
  for (int64_t at : positions) {
    TORCH_CHECK(at >= 0 && at < count, "bundle_outputs: entry ", name, " has ", count,
                " outputs, and none at position ", at);
  }
  Bound& state = bound(name);
  state.bundledOut = positions;
  state.returned.clear();
  for (int64_t o = 0; o < count; ++o) {
    const OutputRole role = entry(name).outputs[o].role;
    if (role == OutputRole::Output || role == OutputRole::Alias) state.returned.push_back(o);
  }
  runtime_->holdTogether(name, positions);
}

void LoadedProgram::bundleInputs(const std::string& name, const std::vector<int64_t>& positions,
                                 const std::vector<int64_t>& members) {
  const std::lock_guard lock(mutex_);
  TORCH_CHECK(positions.size() == members.size(), "bundle_inputs: ", positions.size(),
              " positions for ", members.size(), " members");
  Bound& state = bound(name);
  for (int64_t at : positions) {
    TORCH_CHECK(std::erase(state.open, at) == 1, "bundle_inputs: entry ", name,
                " has no open input at position ", at);
  }
  state.bundledIn = positions;
  state.members = members;
}

/// `last`: nobody will run the entry with the same bundle again.
template <typename List>
std::vector<c10::IValue> LoadedProgram::allInputs(const Bound& state, const AliveTensors& alive,
                                                  const List& values, bool last) {
  const size_t first = state.bundledIn.empty() ? 0 : 1;
  TORCH_CHECK(values.size() == state.open.size() + first, "entry ", state.entry->name, " takes ",
              state.open.size() + first, " inputs that are not bound, and was given ",
              values.size());
  std::vector<c10::IValue> inputs = boundValues(state, alive);
  if (first > 0) {
    std::vector<c10::IValue> saved = bundled(c10::IValue(values.front()).toTensor(), last);
    for (size_t i = 0; i < state.members.size(); ++i) {
      inputs[state.bundledIn[i]] = std::move(saved.at(state.members[i]));
    }
  }
  for (size_t i = first; i < values.size(); ++i) inputs[state.open[i - first]] = values[i];
  return inputs;
}

std::vector<c10::IValue> LoadedProgram::withBundle(const Bound& state,
                                                   std::vector<c10::IValue> results) {
  const std::vector<int64_t>& positions = state.bundledOut;
  if (positions.empty()) return results;
  llvm::SmallVector<at::Tensor, 4> returned;
  for (int64_t o : state.returned) {
    if (results[o].isTensor()) returned.push_back(results[o].toTensor());
  }
  for (int64_t position : positions) results[position] = apartFrom(results[position], returned);
  std::vector<c10::IValue> saved, rest;
  saved.reserve(positions.size());
  for (size_t o = 0; o < results.size(); ++o) {
    const size_t next = saved.size();
    const bool is = next < positions.size() && positions[next] == static_cast<int64_t>(o);
    (is ? saved : rest).push_back(std::move(results[o]));
  }
  rest.emplace_back(makeBundle(std::move(saved)));
  return rest;
}

/// Nothing for a run inside of a step: it changes nothing here, and the step may be waiting for it.
std::unique_lock<std::recursive_mutex> LoadedProgram::turn() const {
  if (StepScope::isInside()) return {};
  return std::unique_lock(mutex_);
}

/// A step inside of itself would add to gradients that are being computed; where another thread runs it,
/// that one may be waiting for this.
std::unique_lock<std::recursive_mutex> LoadedProgram::stepTurn() const {
  std::unique_lock lock(mutex_, std::defer_lock);
  if (!StepScope::isInside()) {
    lock.lock();
    return lock;
  }
  TORCH_CHECK(
      lock.try_lock() && !stepping_,
      "a compiled step was called inside of itself, by an operator or in a backward; call the "
      "function there that it was made of");
  return lock;
}

std::vector<c10::IValue> LoadedProgram::runLogged(const Bound& state,
                                                  std::vector<c10::IValue> inputs,
                                                  const KernelSettings* settings) {
  if (StepScope::isInside()) return runCounted(state, std::move(inputs), /*captured=*/true);
  const std::string& name = state.entry->name;
  if (repeats_ && repeated_.count(name) != 0) return repeated(name);
  std::optional<Shadow::Run> compared;
  if (shadow_) compared = shadow_->begin(runtime_->program(), name, inputs, runtime_->remarks());
  const RuntimeStats before = runtime_->stats();
  const auto begin = std::chrono::steady_clock::now();
  auto results = timed_ ? runWithTimes(state, std::move(inputs))
                        : runCounted(state, std::move(inputs), /*captured=*/true, settings);
  times_[name].add(before, runtime_->stats(), std::chrono::steady_clock::now() - begin);
  progress_.end();
  if (compared) {
    times_[name].plain.add(compared->time.count());
    shadow_->compare(*compared, results, runtime_->remarks());
  }
  if (repeats_) repeated_[name] = results;
  const Remarks& remarks = runtime_->remarks();
  if (remarks.all().size() > logged_) {
    logMissed(remarks, logged_);
    logged_ = remarks.all().size();
  }
  return results;
}

std::vector<c10::IValue> LoadedProgram::runWithTimes(const Bound& state,
                                                     std::vector<c10::IValue> inputs) {
  const std::string& name = state.entry->name;
  const SharedVersions& versions = *state.versions;
  const std::vector<at::Tensor> counters = versions.counters(inputs);
  auto results = timed_->run(*runtime_, name, std::move(inputs));
  versions.share(counters, results);
  return results;
}

std::vector<c10::IValue> LoadedProgram::runCounted(const Bound& state,
                                                   std::vector<c10::IValue> inputs, bool captured,
                                                   const KernelSettings* settings) {
  const auto runs = [&] {
    const std::string& name = state.entry->name;
    return captured ? runtime_->run(name, std::move(inputs), settings)
                    : runtime_->runUncaptured(name, std::move(inputs));
  };
  const SharedVersions& versions = *state.versions;
  if (versions.empty()) return runs();
  const std::vector<at::Tensor> counters = versions.counters(inputs);
  auto results = runs();
  versions.share(counters, results);
  return results;
}

template <typename List>
std::vector<c10::IValue> LoadedProgram::runInTurn(const std::string& name, const List& values) {
  const auto lock = turn();
  const Bound& state = bound(name);
  const AliveTensors alive(state.weak);
  return withBundle(state, runLogged(state, allInputs(state, alive, values)));
}

std::vector<c10::IValue> LoadedProgram::run(const std::string& name,
                                            const std::vector<c10::IValue>& values) {
  return runInTurn(name, values);
}

bool LoadedProgram::hasSaved(const std::string& name, const Values& values) {
  const std::lock_guard lock(mutex_);
  const Bound& state = bound(name);
  std::vector<c10::IValue> inputs(state.entry->inputs.size());
  for (size_t i = 0; i < values.size() && i < state.open.size(); ++i)
    inputs[state.open[i]] = values.get(i);
  return runtime_->hasSaved(name, inputs);
}

void LoadedProgram::keepUpdate(const std::string& name, const std::vector<int64_t>& gradients,
                               const std::vector<int64_t>& owners,
                               const std::vector<int64_t>& numbers,
                               const std::vector<int64_t>& counters,
                               const std::vector<at::Tensor>& without, const std::string& label) {
  const std::lock_guard lock(mutex_);
  Bound& state = bound(name);
  TORCH_CHECK(state.weak.empty() && state.bundledIn.empty(), "keep_update: entry ", name,
              " has inputs that come otherwise");
  TORCH_CHECK(gradients.size() + numbers.size() == state.open.size(), "keep_update: entry ", name,
              " takes ", state.open.size(), " inputs that are not bound, and was told of ",
              gradients.size() + numbers.size());
  state.update = std::make_unique<UpdateInputs>(state.values, gradients, owners, numbers, counters,
                                                without, label);
}

std::vector<double> LoadedProgram::runUpdate(const std::string& name,
                                             const std::vector<double>& numbers,
                                             const std::vector<double>& counts) {
  if (StepScope::isInside()) return {};
  const std::lock_guard lock(mutex_);
  const Bound& state = bound(name);
  if (!state.update || shadow_ || timed_ || repeats_ || !state.versions->empty()) return {};
  UpdateInputs& inputs = *state.update;
  const auto drop = c10::make_scope_exit([&] { inputs.drop(); });
  if (!inputs.take(numbers)) return {};
  const StepMark mark([&] { return inputs.name(); });
  const RuntimeStats before = runtime_->stats();
  const auto begin = std::chrono::steady_clock::now();
  Runtime::Straight step = runtime_->runStraight(name, inputs.values(), inputs.counters(), counts);
  std::vector<double> answer = std::move(step.counts);
  if (!step.ran) {
    if (!answer.empty()) answer.insert(answer.begin(), 0);
    return answer;
  }
  answer.insert(answer.begin(), 1);
  times_[name].add(before, runtime_->stats(), std::chrono::steady_clock::now() - begin);
  const Remarks& remarks = runtime_->remarks();
  if (remarks.all().size() > logged_) {
    logMissed(remarks, logged_);
    logged_ = remarks.all().size();
  }
  return answer;
}

void LoadedProgram::keepGradients(const std::string& name,
                                  const std::vector<at::Tensor>& examples) {
  const std::lock_guard lock(mutex_);
  bound(name).gradients.emplace(examples);
}

std::vector<c10::IValue> LoadedProgram::runOnGradients(const std::string& name,
                                                       const std::vector<at::Tensor>& owners,
                                                       const std::vector<double>& numbers) {
  const auto lock = turn();
  const Bound& state = bound(name);
  if (!state.gradients) return {};
  auto inputs = state.gradients->of(owners);
  if (!inputs) return {};
  for (const double number : numbers) inputs->emplace_back(number);
  std::vector<c10::IValue> results;
  try {
    results = runInTurn(name, *inputs);
  } catch (const InputsShared&) {
    return {};
  }
  results.insert(results.begin(), true);
  return results;
}

std::vector<at::Tensor> LoadedProgram::runTensors(const std::string& name,
                                                  const std::vector<at::Tensor>& values) {
  return asTensors(runInTurn(name, values));
}

std::vector<c10::IValue> LoadedProgram::runUncaptured(const std::string& name,
                                                      const std::vector<c10::IValue>& values) {
  const auto lock = turn();
  const Bound& state = bound(name);
  const AliveTensors alive(state.weak);
  auto results =
      runCounted(state, allInputs(state, alive, values, /*last=*/false), /*captured=*/false);
  return withBundle(state, std::move(results));
}

LoadedProgram::Gradients& LoadedProgram::gradientsOf(const std::string& name) {
  auto found = gradients_.find(name);
  if (found == gradients_.end()) {
    const Entry& of = entry(name);
    const bool staticResults = planned_->options.runtime.results == ResultPolicy::Static;
    found =
        gradients_.emplace(name, Gradients{GradientTargets(of, staticResults), GradientBuffers(of)})
            .first;
  }
  return found->second;
}

std::vector<c10::IValue> LoadedProgram::step(const Bound& state, std::vector<c10::IValue> inputs,
                                             bool checkHooks) {
  try {
    return stepOrThrow(state, std::move(inputs), checkHooks);
  } catch (const InputsShared& shared) {
    shared_ = shared.what_without_backtrace();
    return {};
  }
}

/// Throws InputsShared, and nothing has run.
std::vector<c10::IValue>
LoadedProgram::stepOrThrow(const Bound& state, std::vector<c10::IValue> inputs, bool checkHooks) {
  const KernelSettings settings = KernelSettings::now();
  if (isMadeForOthers(settings)) return {};
  auto& [targets, buffers] = gradientsOf(state.entry->name);
  stepping_ = true;
  const auto over = c10::make_scope_exit([this] { stepping_ = false; });
  try {
    targets.check(inputs, checkHooks);
    buffers.check(inputs, checkHooks);
  } catch (const StepRefusal&) {
    return {};
  }
  if (buffers.empty() && targets.empty()) return runLogged(state, std::move(inputs), &settings);
  if (buffers.empty()) return targets.accumulate(inputs, runLogged(state, inputs, &settings));
  std::vector<c10::IValue> results;
  try {
    buffers.prepare(inputs, runtime_->remarks());
    results = runLogged(state, inputs, &settings);
  } catch (...) {
    buffers.abandon(inputs);
    throw;
  }
  buffers.finish(inputs);
  return targets.accumulate(inputs, std::move(results));
}

template <typename List>
std::vector<c10::IValue> LoadedProgram::stepInTurn(const std::string& name, const List& values,
                                                   bool checkHooks) {
  const auto lock = stepTurn();
  const Bound& state = bound(name);
  const AliveTensors alive(state.weak);
  return step(state, allInputs(state, alive, values), checkHooks);
}

std::vector<c10::IValue> LoadedProgram::runStep(const std::string& name,
                                                const std::vector<c10::IValue>& values,
                                                bool checkHooks) {
  return stepInTurn(name, values, checkHooks);
}

std::vector<at::Tensor> LoadedProgram::runStepTensors(const std::string& name,
                                                      const std::vector<at::Tensor>& values,
                                                      bool checkHooks) {
  return asTensors(stepInTurn(name, values, checkHooks));
}

int64_t LoadedProgram::directCall(const std::string& method, const std::string& entry, int64_t slow,
                                  int64_t report, const std::vector<int64_t>& tensors) {
  return makeDirectCall(*this, {method, entry, slow, report, tensors});
}

void LoadedProgram::reportParked() { gravure::reportParked(); }

void LoadedProgram::setMadeFor(int64_t settings) {
  const std::lock_guard lock(mutex_);
  madeFor_ = KernelSettings::ofNumber(settings);
}

int64_t LoadedProgram::kernelSettings() { return KernelSettings::now().number(); }

std::string LoadedProgram::settingsDifference(int64_t one, int64_t other) {
  return KernelSettings::ofNumber(one).difference(KernelSettings::ofNumber(other));
}

bool LoadedProgram::isMadeForOthers(const KernelSettings& settings) const {
  return madeFor_ && *madeFor_ != settings;
}

std::tuple<std::string, std::string> LoadedProgram::refusal(const std::string& name,
                                                            const Values& values, bool checkHooks) {
  const auto lock = stepTurn();
  const KernelSettings settings = KernelSettings::now();
  if (isMadeForOthers(settings)) {
    return {"settings",
            settings.difference(*madeFor_) + " was set otherwise when the step was compiled"};
  }
  const Bound& state = bound(name);
  const AliveTensors alive(state.weak);
  const std::vector<c10::IValue> inputs = allInputs(state, alive, values.vec(), /*last=*/false);
  const auto& [targets, buffers] = gradientsOf(name);
  try {
    targets.check(inputs, checkHooks);
    buffers.check(inputs, checkHooks);
  } catch (const StepRefusal& refusal) {
    return {refusal.kind(), refusal.what_without_backtrace()};
  }
  if (!shared_.empty()) return {"memory", std::exchange(shared_, "")};
  return {};
}

std::string LoadedProgram::sharedInputs(const std::string& name, const Values& values) {
  const auto lock = turn();
  const Bound& state = bound(name);
  const AliveTensors alive(state.weak);
  return runtime_->sharedInputs(name, allInputs(state, alive, values.vec(), /*last=*/false));
}

std::vector<int64_t> LoadedProgram::sharedTensors(const std::vector<at::Tensor>& tensors,
                                                  const std::vector<int64_t>& written) {
  std::vector<c10::IValue> values(tensors.begin(), tensors.end());
  std::vector<size_t> positions(written.begin(), written.end());
  std::sort(positions.begin(), positions.end());
  const auto shared = findShared(values, positions);
  if (!shared) return {};
  return {static_cast<int64_t>(shared->written), static_cast<int64_t>(shared->other)};
}

void LoadedProgram::setUpdated(const std::string& name, const std::vector<int64_t>& positions) {
  const std::lock_guard lock(mutex_);
  gradientsOf(name).targets.setUpdated(entry(name), positions);
}

void LoadedProgram::setFrozen(const std::string& name, const std::vector<int64_t>& positions) {
  const std::lock_guard lock(mutex_);
  gradientsOf(name).targets.setFrozen(entry(name), positions);
}

Remarks LoadedProgram::allRemarks() const {
  const std::lock_guard lock(mutex_);
  Remarks all = planned_->remarks;
  for (const Remark& remark : runtime_->remarks().all()) {
    all.add(remark.kind, remark.pass, remark.name, remark.message) = remark;
  }
  return all;
}

std::string LoadedProgram::remarksText() const {
  std::string text;
  llvm::raw_string_ostream os(text);
  allRemarks().printText(os);
  return text;
}

std::string LoadedProgram::remarksJson() const {
  std::string text;
  llvm::raw_string_ostream os(text);
  allRemarks().printJson(os);
  return text;
}

std::string LoadedProgram::plan() const {
  const std::lock_guard lock(mutex_);
  std::string text = planned_->partitionPlan;
  llvm::raw_string_ostream os(text);
  const MemoryPlan& memory = runtime_->memoryPlan();
  if (!memory.buffers.empty()) {
    memory.print(os);
    printMemoryMap(memory, os);
  }
  return text;
}

std::string LoadedProgram::detailJson() const {
  const std::lock_guard lock(mutex_);
  std::string text;
  llvm::raw_string_ostream os(text);
  printStepDetail(runtime_->program(), planned_->passes, &runtime_->memoryPlan(), os);
  return text;
}

c10::Dict<std::string, int64_t> LoadedProgram::runTimes() const {
  const std::lock_guard lock(mutex_);
  c10::Dict<std::string, int64_t> named;
  for (const auto& [entry, times] : times_) {
    times.uncaptured.insertInto(named, entry + ".uncaptured.");
    times.replayed.insertInto(named, entry + ".replayed.");
    named.insert(entry + ".replayed.launches", times.launches);
    named.insert(entry + ".replayed.staged_bytes", times.stagedBytes);
    if (times.plain.runs > 0) times.plain.insertInto(named, entry + ".plain.");
  }
  return named;
}

std::string LoadedProgram::callTimesJson() const {
  const std::lock_guard lock(mutex_);
  if (!timed_) return "{}";
  std::string text;
  llvm::raw_string_ostream os(text);
  timed_->printJson(os);
  return text;
}

std::string LoadedProgram::tracedCallsJson() const {
  const std::lock_guard lock(mutex_);
  std::string text;
  llvm::raw_string_ostream os(text);
  llvm::json::OStream json(os);
  json.array([&] {
    for (const Runtime::TracedCall& call : runtime_->tracedCalls()) {
      json.object([&] {
        json.attribute("first", static_cast<int64_t>(call.first));
        json.attribute("count", static_cast<int64_t>(call.count));
        json.attribute("operator", call.node->kind().toQualString());
        json.attribute("source", sourceOf(call.node));
        json.attribute("module", llvm::StringRef(moduleOf(call.node)));
        json.attribute("entry", *call.entry);
        json.attribute("partition", call.partition);
      });
    }
  });
  return text;
}

std::string LoadedProgram::text() const { return programText(runtime_->program()); }

c10::Dict<std::string, int64_t> LoadedProgram::stats() const {
  const std::lock_guard lock(mutex_);
  const RuntimeStats& stats = runtime_->stats();
  c10::Dict<std::string, int64_t> named;
  named.insert("steps", stats.steps);
  named.insert("uncaptured_steps", stats.uncapturedSteps);
  named.insert("captures", stats.captures);
  named.insert("replays", stats.replays);
  named.insert("capture_sets", stats.captureSets);
  named.insert("host_calls", stats.hostCalls);
  named.insert("staged_bytes", stats.stagedBytes);
  named.insert("copied_result_bytes", stats.copiedResultBytes);
  named.insert("arena_bytes", stats.arenaBytes);
  named.insert("arena_load", stats.arenaLoad);
  named.insert("held_bytes", stats.heldBytes);
  const Runtime::WrittenNumbers written = runtime_->writtenNumbers();
  named.insert("written_numbers", written.numbers);
  named.insert("written_kernels", written.kernels);
  if (shadow_) {
    named.insert("compared", shadow_->compared());
    named.insert("different", shadow_->different());
  }
  return named;
}

std::vector<std::string> LoadedProgram::partitionStates(const std::string& name) const {
  const std::lock_guard lock(mutex_);
  (void)entry(name);
  std::vector<std::string> names;
  for (PartitionState state : runtime_->partitionStates(name)) names.emplace_back(stateName(state));
  return names;
}

void LoadedProgram::injectFault(const std::string& point, int64_t countdown) {
  TORCH_CHECK(countdown >= 1, "inject_fault: expected the 1st or a later pass, found ", countdown);
  const std::lock_guard lock(mutex_);
  runtime_->device().injectFault(parseFaultPoint(point), countdown);
}

void LoadedProgram::synchronize() { runtime_->device().synchronize(); }

void LoadedProgram::shutdown() {
  using namespace std::chrono_literals;
  // A process that ends does not wait for a thread that hangs in a step.
  std::unique_lock lock(mutex_, std::try_to_lock);
  for (const auto end = std::chrono::steady_clock::now() + 30s; !lock.owns_lock();) {
    if (std::chrono::steady_clock::now() > end) {
      TORCH_WARN("a program has run a step for more than 30 seconds while it was to end; it stays");
      return;
    }
    std::this_thread::sleep_for(1ms);
    (void)lock.try_lock();
  }
  runtime_->shutdown();
}

bool LoadedProgram::isFirstBackward() {
  return !ranBackward_.load(std::memory_order_relaxed) && !ranBackward_.exchange(true) &&
         planned_->device != "host";
}

int64_t LoadedProgram::releaseMemory() { return releaseHostMemory() + releaseCudaMemory(); }

bool LoadedProgram::takeDropoutRestart(int64_t device) {
  return gravure::takeDropoutRestart(static_cast<c10::DeviceIndex>(device));
}

}  // namespace gravure
