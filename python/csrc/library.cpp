// What torch.ops.load_library("libgravure.so") adds to a process: torch.classes.gravure.Program.
// No Python header is used, so one file serves every Python version.

#include "python/csrc/distinct_values.h"
#include "python/csrc/gradient_watch.h"
#include "python/csrc/loaded_program.h"
#include "python/csrc/memory_watch.h"
#include "python/csrc/planning/operator_facts.h"
#include "python/csrc/planning/planned_sections.h"
#include "python/csrc/planning/planning.h"
#include "python/csrc/same_objects.h"
#include "python/csrc/warm_up_pool.h"
#include "runtime/ranks/process_group.h"
#include "runtime/results/watched_operands.h"

#include <torch/library.h>

#include <string>
#include <utility>
#include <vector>

namespace gravure {
namespace {

using Self = c10::intrusive_ptr<LoadedProgram>;
using Values = LoadedProgram::Values;
using Tensors = std::vector<at::Tensor>;

/// torch.classes has no vector of values of any type.
Values asList(std::vector<c10::IValue> values) {
  Values list(c10::AnyType::get());
  list.reserve(values.size());
  for (c10::IValue& value : values) list.push_back(std::move(value));
  return list;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(gravure, m) {
  m.class_<LoadedProgram>("Program")
      .def(torch::init<const std::string&, const std::string&, const LoadedProgram::Options&>())
      .def_static("of_text", &LoadedProgram::ofText)
      .def("again", &LoadedProgram::again)
      .def_static("explain", &explainProgram)
      .def_static("planned_sections", &plannedSections)
      .def_static("operator_facts", &operatorFacts)
      .def("entries", &LoadedProgram::entries)
      .def("inputs", &LoadedProgram::inputs)
      .def("outputs", &LoadedProgram::outputs)
      .def("bind", &LoadedProgram::bind)
      .def("bind_weakly", &LoadedProgram::bindWeakly)
      .def("bundle_outputs", &LoadedProgram::bundleOutputs)
      .def("bundle_inputs", &LoadedProgram::bundleInputs)
      .def("set_made_for", &LoadedProgram::setMadeFor)
      .def_static("kernel_settings", &LoadedProgram::kernelSettings)
      .def_static("settings_difference", &LoadedProgram::settingsDifference)
      .def("keep_numbers", &LoadedProgram::keepNumbers)
      .def("bind_numbers", &LoadedProgram::bindNumbers)
      .def("run", [](const Self& self, const std::string& entry,
                     const Values& values) { return asList(self->run(entry, values.vec())); })
      .def("keep_update", &LoadedProgram::keepUpdate)
      .def("run_update", &LoadedProgram::runUpdate)
      .def("keep_gradients", &LoadedProgram::keepGradients)
      .def("run_on_gradients",
           [](const Self& self, const std::string& entry, const Tensors& owners,
              const std::vector<double>& numbers) {
             return asList(self->runOnGradients(entry, owners, numbers));
           })
      .def("run_uncaptured",
           [](const Self& self, const std::string& entry, const Values& values) {
             return asList(self->runUncaptured(entry, values.vec()));
           })
      .def("run_tensors", &LoadedProgram::runTensors)
      .def("set_autograd", &LoadedProgram::setAutograd)
      .def("run_differentiable", &LoadedProgram::runDifferentiable)
      .def("set_defers", &LoadedProgram::setDefers)
      .def("holds_saved", &LoadedProgram::holdsSaved)
      .def("has_saved", &LoadedProgram::hasSaved)
      .def("warm_up_with", &LoadedProgram::warmUpWith)
      .def("learn_from", &LoadedProgram::learnFrom)
      .def("set_whole", &LoadedProgram::setWhole)
      .def("take_tangent_news", &LoadedProgram::takeTangentNews)
      .def_static("has_arrived_gradient", &LoadedProgram::hasArrivedGradient)
      .def_static("watch_results", &GradientWatch::watch)
      .def("run_step",
           [](const Self& self, const std::string& entry, const Values& values, bool checkHooks) {
             return asList(self->runStep(entry, values.vec(), checkHooks));
           })
      .def("run_step_tensors", &LoadedProgram::runStepTensors)
      .def("refusal", &LoadedProgram::refusal)
      .def("set_updated", &LoadedProgram::setUpdated)
      .def("set_frozen", &LoadedProgram::setFrozen)
      .def("remarks_text", &LoadedProgram::remarksText)
      .def("remarks_json", &LoadedProgram::remarksJson)
      .def("plan", &LoadedProgram::plan)
      .def("detail_json", &LoadedProgram::detailJson)
      .def("run_times", &LoadedProgram::runTimes)
      .def("call_times_json", &LoadedProgram::callTimesJson)
      .def("traced_calls_json", &LoadedProgram::tracedCallsJson)
      .def("text", &LoadedProgram::text)
      .def("stats", &LoadedProgram::stats)
      .def("partition_states", &LoadedProgram::partitionStates)
      .def("direct_call", &LoadedProgram::directCall)
      .def("report_parked", &LoadedProgram::reportParked)
      .def_static("same_objects", &makeSameObjects)
      .def_static("distinct_values", &makeDistinctValues)
      .def_static("memory_watch", &makeMemoryWatch)
      .def_static("shared_tensors", &LoadedProgram::sharedTensors)
      .def("shared_inputs", &LoadedProgram::sharedInputs)
      .def("inject_fault", &LoadedProgram::injectFault)
      .def("repeat_results", &LoadedProgram::repeatResults)
      .def("synchronize", &LoadedProgram::synchronize)
      .def_static("enter_warm_up_pool", &enterWarmUpPool)
      .def_static("leave_warm_up_pool", &leaveWarmUpPool)
      .def_static("release_memory", &LoadedProgram::releaseMemory)
      .def_static("take_dropout_restart", &LoadedProgram::takeDropoutRestart)
      .def_static("watch_operands", &watchOperands)
      .def_static("is_watched_operand", &isWatchedOperand)
      .def_static("drop_collectives", &LoadedProgram::dropCollectives)
      .def_static("shares_other_memory", &sharesOtherMemory)
      .def("shutdown", &LoadedProgram::shutdown);

  // LoadedProgram::apart() and fitted(), which Python implements (programs_beside.py).
  m.def("apart(int number) -> __torch__.torch.classes.gravure.Program?");
  m.def("fitted(int number, int[] forms, bool apart) -> __torch__.torch.classes.gravure.Program?");
  // GradientWatch tells, and Python listens (seen_results.py).
  m.def("seen_result(int graph, int result, int through, int how, Tensor? hooked) -> ()");
}

// Nothing to do: recorded_step.py says what it is for, and declares it.
TORCH_LIBRARY_IMPL(gravure, CompositeExplicitAutograd, m) {
  m.impl("before_update", [](at::TensorList /*gradients*/) {});
}

}  // namespace gravure
