#pragma once
// A program that Python has loaded: read, cut by the passes, and ready to run on one device.

#include "ir/core/remark.h"
#include "python/csrc/autograd/autograd_plan.h"
#include "python/csrc/autograd/gradient_buffers.h"
#include "python/csrc/autograd/gradients.h"
#include "python/csrc/autograd/shared_versions.h"
#include "python/csrc/autograd/weak_tensors.h"
#include "python/csrc/gradient_inputs.h"
#include "python/csrc/process/run_times.h"
#include "python/csrc/process/user_log.h"
#include "python/csrc/shadow.h"
#include "python/csrc/timed_runs.h"
#include "python/csrc/update_inputs.h"
#include "runtime/device/kernel_settings.h"
#include "runtime/runtime.h"

#include <ATen/core/ivalue.h>
#include <torch/custom_class.h>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace gravure {

struct LoadOptions;
struct Program;
struct ProgramSource;

/// `torch.classes.gravure.Program`. Threads run it one after another: autograd's and a server's may
/// come at any time. What an operator of a step brings about does not wait for the step's end
/// (runtime.h). Called without Python's lock (torch.classes sees to it), since whoever's turn it is may
/// wait for that.
///
/// Python comes here in two ways: by torch.classes (library.cpp), and past it (direct_calls.h). A method that
/// both call takes and returns vectors.
class LoadedProgram final : public torch::CustomClassHolder {
 public:
  /// What take_tangent_news() may return (calls/compiled_graph.py).
  static constexpr int64_t kCameAfterAll = -1, kLiesOtherwise = -2;
  using Options = c10::Dict<std::string, std::string>;
  using Values = c10::List<c10::IValue>;  // as torch.classes has values of any type

  /// `path`: a program text. `device`: "host", "cuda" or "cuda:N". `options`, all optional:
  ///   host                operators and module paths to keep out of graphs, separated by commas
  ///   order               "levels" or "program"
  ///   min_partition_size, memory_growth, memory_slack
  ///                       PassOptions: operator calls, a share, bytes
  ///   uncaptured          "1": the reference, node by node
  ///   require_capture     "1": a node outside of graphs that `host` does not name is an error, and a
  ///                       partition that fails to capture; "partitions": the latter alone
  ///   results             "owned", "copied", "static", or "accumulate": gradients are added to buffers,
  ///                       which are inputs named "w.grad"
  ///   agree               "capture" or "step": when ranks decide together (AgreeWhen)
  ///   write_numbers       "1": operators that take a float read on the host are captured, too
  ///   poison              "0": the host device does not overwrite dead memory
  ///   times               "1": after the first run, runs of each entry are timed (timed_runs.h)
  ///   shadow              N: each Nth run of an entry is compared with the uncaptured path
  LoadedProgram(const std::string& path, const std::string& device, const Options& options);
  LoadedProgram(const ProgramSource& source, const std::string& device, const LoadOptions& options);
  /// What programs of one text have alike: no call changes it.
  struct Planned;
  /// again() of the program that has these.
  LoadedProgram(std::shared_ptr<const Planned> planned, const Runtime& runtime);
  ~LoadedProgram() override;
  /// The same from a program text in memory.
  static c10::intrusive_ptr<LoadedProgram>
  ofText(const std::string& text, const std::string& device, const Options& options);

  /// One more of the same text, on the same device with the same options, for other calls: read and planned
  /// once. What is bound, bundled or told of this one is not of the other, and it may be shut down.
  c10::intrusive_ptr<LoadedProgram> again() const;

  std::vector<std::string> entries() const;
  /// Role and name of each input (output) of an entry, in order.
  std::vector<std::tuple<std::string, std::string>> inputs(const std::string& entry) const;
  std::vector<std::tuple<std::string, std::string>> outputs(const std::string& entry) const;

  /// Keeps the values at `positions` for every run to come, so that run() takes only the rest:
  /// a call from Python costs with the number of values it passes.
  void bind(const std::string& entry, const std::vector<int64_t>& positions, const Values& values);
  /// The same without keeping them alive: run() is an error once one of them is gone. A program must not
  /// outlive the model that it was captured for.
  void bindWeakly(const std::string& entry, const std::vector<int64_t>& positions,
                  const std::vector<at::Tensor>& values);
  /// Has bindNumbers() bind other numbers at `positions`, where numbers are bound.
  void keepNumbers(const std::string& entry, const std::vector<int64_t>& positions);
  /// Returns nothing: calls past torch.classes return lists.
  std::vector<double> bindNumbers(const std::string& entry, const std::vector<double>& numbers);
  /// From now on run() of `entry` returns the outputs at `positions` (ascending) as one tensor, which
  /// comes last (saved_bundle.h).
  void bundleOutputs(const std::string& entry, const std::vector<int64_t>& positions);
  /// And run() of `entry` takes such a tensor first: the input at positions[i] is its value members[i].
  void bundleInputs(const std::string& entry, const std::vector<int64_t>& positions,
                    const std::vector<int64_t>& members);
  /// `values`: the inputs that are not bound, in order. Returns one value an output.
  std::vector<c10::IValue> run(const std::string& entry, const std::vector<c10::IValue>& values);
  /// The same for an entry that takes and returns tensors alone: a list of one type costs Python a
  /// fraction of what a list of anything does.
  std::vector<at::Tensor> runTensors(const std::string& entry,
                                     const std::vector<at::Tensor>& values);
  /// Says that its graph was traced under these settings (KernelSettings::number()). Where others are in
  /// force, run_differentiable() and run_step() do not run: another graph is wanted then.
  void setMadeFor(int64_t settings);
  /// The number of the settings in force.
  static int64_t kernelSettings();
  /// What differs between two of them, in words.
  static std::string settingsDifference(int64_t one, int64_t other);
  /// Says what the inputs of an update are from now on, for run_update(): those that are bound; gradients of
  /// the tensors at `owners`; numbers. `counters`: bound CPU tensors of one number, which conditions are on.
  /// `without`: other tensors, which must have no gradient. `name`: of the step, for profilers.
  void keepUpdate(const std::string& entry, const std::vector<int64_t>& gradients,
                  const std::vector<int64_t>& owners, const std::vector<int64_t>& numbers,
                  const std::vector<int64_t>& counters, const std::vector<at::Tensor>& without,
                  const std::string& name);
  /// run() with these inputs and the gradients that there are now, where the counters have the values
  /// `counts`, each once. Returns 1 and the values behind the step; 0 and those that they have, where these
  /// are others and nothing has run; and nothing, and nothing has run, where all is not as in the step
  /// before: run() knows what is to be done then.
  std::vector<double> runUpdate(const std::string& entry, const std::vector<double>& numbers,
                                const std::vector<double>& counts);
  /// Says that `entry` takes gradients like these and then numbers, for run_on_gradients().
  void keepGradients(const std::string& entry, const std::vector<at::Tensor>& examples);
  /// run() with the gradients that `owners` have and these numbers: true and the results; nothing, and nothing
  /// has run, where the gradients are of other kinds.
  std::vector<c10::IValue> runOnGradients(const std::string& entry,
                                          const std::vector<at::Tensor>& owners,
                                          const std::vector<double>& numbers);
  /// run() on the uncaptured path: lent values among the inputs stay good for another run.
  std::vector<c10::IValue> runUncaptured(const std::string& entry,
                                         const std::vector<c10::IValue>& values);
  /// Says how `forward` and `backward` hang together in autograd's graph. The memory of `alive` lives as long
  /// as this program: a graph of autograd's may outlive the Python objects that its operators need.
  void setAutograd(const AutogradPlan::Lists& lists, const at::Tensor& alive,
                   const std::string& graph);
  /// `forward` with `values` for its inputs that are not bound, as one node of autograd's graph, which
  /// runs `backward` without Python. Returns the outputs of the plan; none, and nothing has run, where
  /// the call needs what AOTAutograd's wrapper does: hooks on saved tensors, modes, special tensors; or
  /// another backward, since a frozen input requires a gradient now.
  std::vector<at::Tensor> runDifferentiable(const std::vector<at::Tensor>& values);
  /// From now on run_differentiable() runs nothing where saved values of an earlier run are held, since
  /// another instance of this program has memory for the call.
  void setDefers(bool defers);
  /// Whether they are.
  bool holdsSaved() const;
  /// Whether what it saved is among `values`, which are not bound (Runtime::hasSaved).
  bool hasSaved(const std::string& entry, const Values& values);
  /// `other` is of the same text, for other calls in flight (Runtime::warmUpWith).
  void warmUpWith(const c10::intrusive_ptr<LoadedProgram>& other);
  /// `other` is of the same graph, for other sizes (Runtime::learnFrom).
  void learnFrom(const c10::intrusive_ptr<LoadedProgram>& other);
  /// `backward`, for that node: `values` by position. Without `last` those that are lent stay good.
  std::vector<c10::IValue> runBackward(std::vector<std::pair<int64_t, c10::IValue>> values,
                                       bool last);
  /// Looks how `tangents`, the gradients of outputs, come: most loops give none for what the model returns
  /// beside its loss. Returns their forms, as TangentForm::append writes them, in the first backwards by
  /// autograd's node, until takeTangentNews(), if one does not come as it was traced for.
  std::vector<int64_t> noteTangents(const std::vector<at::Tensor>& tangents);
  /// One of the same forward whose backward was made for such tangents, and gives each term of a gradient by
  /// itself, if `apart`. Made by Python; nothing where there can be none.
  c10::intrusive_ptr<LoadedProgram> fitted(const std::vector<int64_t>& forms, bool apart);
  /// This one's backward was made for what the first one was given. `whole` has the same forward, and runs
  /// the backward where something else comes after all.
  void setWhole(const c10::intrusive_ptr<LoadedProgram>& whole);
  c10::intrusive_ptr<LoadedProgram> whole() const { return whole_; }
  /// One of the same forward whose backward gives each term of a gradient by itself, where this one's adds
  /// them up (AutogradPlan::sums): made by Python when it is first asked for. Nothing where there can be none.
  c10::intrusive_ptr<LoadedProgram> apart();
  /// True once, on a GPU: it has run no backward.
  bool isFirstBackward();
  /// Whether the node that autograd runs now, of whatever kind, comes behind another one that gave a gradient
  /// to where its `edge` leads.
  static bool hasArrivedGradient(int64_t edge);
  std::shared_ptr<const AutogradPlan> autogradPlan() const { return autograd_; }
  /// What run_differentiable() stops for, once: forms that note_tangents() returned; of a program that was
  /// made for some, one number: kCameAfterAll or kLiesOtherwise.
  std::vector<int64_t> takeTangentNews();

  /// Says once that a backward is called under autocast that was traced without, or the other way round.
  void warnOfAutocast();
  /// Says, once a graph, that `tangent`, the gradient of the differentiable output `index`, lies otherwise
  /// than the backward was traced for, so that it is copied first and bits may differ from eager's.
  void warnOfLayout(size_t index, const at::Tensor& tangent);
  /// One step that ends as loss.backward() does: the gradients are added to the `.grad` of the inputs
  /// that they belong to, and the other outputs returned, in order; nothing, and nothing has run, where
  /// refusal() says why: who calls may know what to do. TORCH_CHECK, before anything runs, for an input
  /// that requires a gradient and is no leaf.
  std::vector<c10::IValue> runStep(const std::string& entry, const std::vector<c10::IValue>& values,
                                   bool checkHooks);
  /// As runTensors().
  std::vector<at::Tensor> runStepTensors(const std::string& entry,
                                         const std::vector<at::Tensor>& values, bool checkHooks);

  /// Why a step with these values does not run: a word for what is the case, and the message. "training":
  /// an input requires a gradient, and did not when the step was compiled, or the other way round.
  /// "hook": with `checkHooks`, its gradient had a hook ever: only Python knows whether it was removed.
  /// "settings": set_made_for() was told of others than those in force.
  /// "memory": two inputs share memory that the entry writes (RuntimeOptions::refuseShared).
  /// "" if it runs.
  std::tuple<std::string, std::string> refusal(const std::string& entry, const Values& values,
                                               bool checkHooks);

  /// Which inputs share memory that `entry` writes, in words: then run() is refused, and nothing has run. ""
  /// where none do.
  std::string sharedInputs(const std::string& entry, const Values& values);
  /// The positions of the first two tensors that share memory of which the first is among `written`; none
  /// where no two do. Stand-ins share as their storages do.
  static std::vector<int64_t> sharedTensors(const std::vector<at::Tensor>& tensors,
                                            const std::vector<int64_t>& written);

  /// Inputs that `entry` updates itself: runStep() refuses one that has a gradient, or (as above) a hook
  /// on it.
  void setUpdated(const std::string& entry, const std::vector<int64_t>& positions);
  /// Inputs that required no gradient when `entry` was compiled: runStep() refuses one that does.
  void setFrozen(const std::string& entry, const std::vector<int64_t>& positions);

  std::string remarksText() const;
  std::string remarksJson() const;
  /// The partition plan of each entry; after warm-up the memory plan with its map too.
  std::string plan() const;
  /// Every call and buffer (passes/report/step_detail.h); `measured` once it is warmed up.
  std::string detailJson() const;
  /// By "ENTRY.uncaptured.runs", ".total_ns", ".least_ns", and the same of "replayed"; and of
  /// "plain", runs on the uncaptured path that record nothing, where `shadow` made some.
  c10::Dict<std::string, int64_t> runTimes() const;
  /// What calls take (TimedRuns::printJson); "{}" without the option `times`.
  std::string callTimesJson() const;
  /// Runtime::tracedCalls(): a list of objects with `first`, `count`, `operator`, `source`, `module`, `entry`
  /// and `partition`.
  std::string tracedCallsJson() const;
  /// The program as the passes left it.
  std::string text() const;
  c10::Dict<std::string, int64_t> stats() const;
  /// "cold", "warmed-up", "captured" or "quarantined" for each partition of an entry.
  std::vector<std::string> partitionStates(const std::string& entry) const;

  /// makeDirectCall() of this program (direct_calls.h).
  int64_t directCall(const std::string& method, const std::string& entry, int64_t slow,
                     int64_t report, const std::vector<int64_t>& tensors);
  void reportParked();

  /// Fails the `countdown`-th next pass through "capture-begin", "capture-call", "capture-end",
  /// "launch", "allocation" or "completion": for tests.
  void injectFault(const std::string& point, int64_t countdown);
  /// From now on each run returns what the next one does, and nothing runs: to measure all the rest.
  void repeatResults(bool repeats);
  void synchronize();
  void shutdown();
  /// Gives back the memory of all programs at rest, on all devices; their next steps take it again.
  /// Returns its bytes.
  static int64_t releaseMemory();
  /// takeDropoutRestart() of runtime/device/device.h.
  static bool takeDropoutRestart(int64_t device);
  /// Drops the captures of all programs with captured collectives of `group`, or of any where it is "":
  /// they must go before the process groups do. Steps to come capture anew.
  static void dropCollectives(const std::string& group);

 private:
  /// What is kept of one entry from run to run.
  struct Bound {
    const Entry* entry = nullptr;
    const SharedVersions* versions = nullptr;
    std::vector<c10::IValue> values;  // one an input; what is not bound is empty
    WeakTensors weak;                 // likewise, not kept alive
    std::vector<int64_t> open;        // positions that run() fills
    std::vector<int64_t> bundledOut;  // outputs
    std::vector<int64_t> returned;    // outputs in the caller's hands, where some are bundled
    std::vector<int64_t> bundledIn, members;  // inputs, and which values of the bundle they are
    std::unique_ptr<UpdateInputs> update;     // keepUpdate(); none once something else is bound
    std::optional<GradientInputs> gradients;  // keepGradients()
    std::vector<int64_t> numbers;             // positions that bindNumbers() fills
  };
  const Entry& entry(const std::string& name) const;
  static std::shared_ptr<const Planned> planned(Program& program, const ProgramSource& source,
                                                const std::string& device,
                                                const LoadOptions& options, int64_t alignment);
  RuntimeOptions runtimeOptions();
  void begin(std::unique_ptr<Runtime> runtime);
  void makeBound();
  Bound& bound(const std::string& name);
  /// `positions` of as many `given` values are about to be bound.
  Bound& bindingAt(const std::string& name, const std::vector<int64_t>& positions, size_t given);
  /// One value an input of the entry; what is not bound is empty. `alive`: of its weak ones.
  static std::vector<c10::IValue> boundValues(const Bound& state, const AliveTensors& alive);
  template <typename List>
  static std::vector<c10::IValue> allInputs(const Bound& state, const AliveTensors& alive,
                                            const List& values, bool last = true);
  /// run() and runStep(), of tensors alone or of any values.
  template <typename List>
  std::vector<c10::IValue> runInTurn(const std::string& entry, const List& values);
  template <typename List>
  std::vector<c10::IValue> stepInTurn(const std::string& entry, const List& values,
                                      bool checkHooks);
  static std::vector<c10::IValue> withBundle(const Bound& state, std::vector<c10::IValue> results);
  std::vector<c10::IValue> step(const Bound& state, std::vector<c10::IValue> inputs,
                                bool checkHooks);
  std::vector<c10::IValue> stepOrThrow(const Bound& state, std::vector<c10::IValue> inputs,
                                       bool checkHooks);
  /// Where the gradients of one entry go.
  struct Gradients {
    GradientTargets targets;  // those that it returns
    GradientBuffers buffers;  // those that it adds itself
  };
  Gradients& gradientsOf(const std::string& name);
  /// `settings`: those in force, where they have been asked for.
  std::vector<c10::IValue> runLogged(const Bound& state, std::vector<c10::IValue> inputs,
                                     const KernelSettings* settings = nullptr);
  std::vector<c10::IValue> runCounted(const Bound& state, std::vector<c10::IValue> inputs,
                                      bool captured, const KernelSettings* settings = nullptr);
  std::vector<c10::IValue> runWithTimes(const Bound& state, std::vector<c10::IValue> inputs);
  std::vector<c10::IValue> repeated(const std::string& name) const;
  Remarks allRemarks() const;
  bool isMadeForOthers(const KernelSettings& settings) const;
  TangentForm formOf(size_t i, const at::Tensor& tangent) const;
  std::unique_lock<std::recursive_mutex> turn() const;
  std::unique_lock<std::recursive_mutex> stepTurn() const;

  // Recursive: a Python operator in the program may come back to it.
  mutable std::recursive_mutex mutex_;
  std::shared_ptr<const Planned> planned_;
  CaptureProgress progress_;
  size_t logged_ = 0;  // of the runtime's remarks
  std::unique_ptr<Runtime> runtime_;
  std::map<std::string, Bound> bound_;
  std::shared_ptr<const AutogradPlan> autograd_;
  std::string graph_;  // its name in warnings
  at::Tensor alive_;
  std::map<std::string, RunTimes> times_;  // by entry
  std::unique_ptr<Shadow> shadow_;         // where runs are compared
  std::optional<KernelSettings> madeFor_;  // unknown: it runs under all
  std::unique_ptr<TimedRuns> timed_;       // where runs are timed
  bool repeats_ = false;
  bool defers_ = false;
  bool stepping_ = false;  // in step(), on the thread that holds mutex_
  std::string shared_;     // why the last step was refused, where inputs share memory
  /// Shared by all programs of a graph, for sizes and calls in flight, so that each is said once a graph.
  struct Warned {
    std::atomic<bool> ofAutocast = false, ofLayout = false;
  };
  std::shared_ptr<Warned> warned_ = std::make_shared<Warned>();
  std::atomic<bool> tangentsNoted_ = false, tangentNews_ = false;
  std::vector<int64_t> tangentForms_;  // written before tangentNews_ is, read behind it
  c10::intrusive_ptr<LoadedProgram> whole_;
  std::atomic<bool> ranBackward_ = false;
  std::mutex apartMutex_;
  c10::intrusive_ptr<LoadedProgram> apart_;
  std::map<std::string, std::vector<c10::IValue>> repeated_;
  std::map<std::string, Gradients> gradients_;
};

}  // namespace gravure
