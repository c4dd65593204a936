#include "tools/gravure/run/run.h"

#include "ir/core/cudagraph_ops.h"
#include "runtime/results/bits.h"
#include "tools/gravure/command/pass_flags.h"
#include "tools/gravure/command/remark_output.h"
#include "tools/gravure/run/run_report.h"
#include "tools/gravure/run/side.h"

#include <ATen/Context.h>
#include <llvm/Support/raw_ostream.h>

#include <chrono>

namespace gravure::tool {
namespace {

namespace cl = llvm::cl;

// In the order of FaultPoint, whose last ones are for tests alone.
const std::vector<std::string> kFaultPoints = {"capture-begin", "capture-call", "capture-end",
                                               "launch", "allocation"};

/// `%loss {loss}`, `%g {gradient "layer.weight"}`: an output as a message names it.
std::string outputName(const Entry& entry, size_t index) {
  const OutputInfo& info = entry.outputs[index];
  std::string text = "%" + entry.graph->outputs()[index]->debugName();
  if (info.role == OutputRole::Unspecified) return text;
  text += std::string(" {") + roleName(info.role);
  if (!info.name.empty()) text += " \"" + info.name + "\"";
  if (info.input >= 0) text += " %" + entry.graph->inputs()[info.input]->debugName();
  return text + "}";
}

class RunCommand final : public Command {
 public:
  RunCommand() : Command("run", "run a program step by step; --verify compares it in bits") {}

  int run() override;

 private:
  void checkFlags() const;
  void injectFault(Device& device) const;
  /// Runs one step on both sides; what differs first, or "".
  std::string compareStep(const Program& program, int64_t step, Side& captured, Side& reference);
  std::string compareEntry(const Entry& entry, const Side& captured, const Side& reference) const;
  std::vector<double> timeSteps(const Program& program, Side& side) const;

  template <typename T>
  using Opt = cl::opt<T>;
  Opt<std::string> path_{cl::Positional, cl::desc("PATH"), cl::sub(sub()), cl::cat(category())};
  Opt<std::string> device_{"device",         cl::value_desc("host|cuda[:N]"),
                           cl::init("host"), cl::desc("host emulates capture on the CPU (default)"),
                           cl::sub(sub()),   cl::cat(category())};
  Opt<long> steps_{"steps",        cl::value_desc("N"),
                   cl::init(10),   cl::desc("how many steps (default 10)"),
                   cl::sub(sub()), cl::cat(category())};
  Opt<bool> verify_{"verify", cl::desc("compare each step with the uncaptured program, bit by bit"),
                    cl::sub(sub()), cl::cat(category())};
  Opt<long> seed_{"seed",         cl::value_desc("S"),
                  cl::init(0),    cl::desc("seed of the inputs and of the generators (default 0)"),
                  cl::sub(sub()), cl::cat(category())};
  Opt<std::string> inject_{
      "inject", cl::value_desc("POINT:N"),
      cl::desc("fail the N-th capture-begin, capture-call, capture-end, launch "
               "or allocation"),
      cl::sub(sub()), cl::cat(category())};
  Opt<long> corrupt_{"corrupt",
                     cl::value_desc("STEP"),
                     cl::init(-1),
                     cl::ReallyHidden,
                     cl::desc("flip one bit of a captured result, to see --verify fail"),
                     cl::sub(sub()),
                     cl::cat(category())};
  Opt<bool> json_{"json", cl::desc("print the figures as JSON"), cl::sub(sub()),
                  cl::cat(category())};
  PassFlags flags_{*this};
  RemarkOutput remarkOutput_{*this};
};

void RunCommand::checkFlags() const {
  if (path_.empty()) throw UsageError("run: expected a program text or an exported folder");
  checkWithin("--steps", steps_, 1);
  if (corrupt_.getNumOccurrences() > 0) {
    if (!verify_) throw UsageError("--corrupt: only --verify compares; add it");
    checkWithin("--corrupt", corrupt_, 0, steps_ - 1);
  }
  remarkOutput_.check();
  (void)flags_.options();
  if (inject_.getNumOccurrences() == 0) return;
  auto [point, count] = llvm::StringRef(inject_).split(':');
  checkOneOf("--inject", point, kFaultPoints);
  int64_t number = 0;
  if (count.getAsInteger(10, number) || number < 1) {
    throw UsageError("--inject: expected POINT:N, the N-th next pass through the point, found '" +
                     inject_ + "'");
  }
}

void RunCommand::injectFault(Device& device) const {
  if (inject_.empty()) return;
  auto [point, count] = llvm::StringRef(inject_).split(':');
  int64_t number = 0;
  count.getAsInteger(10, number);
  const auto at = std::find(kFaultPoints.begin(), kFaultPoints.end(), point);
  device.injectFault(static_cast<FaultPoint>(at - kFaultPoints.begin()), number);
}

std::string RunCommand::compareEntry(const Entry& entry, const Side& captured,
                                     const Side& reference) const {
  for (size_t i = 0; i < entry.outputs.size(); ++i) {
    // A saved value may hold bytes that no kernel wrote (the seed that attention without dropout
    // returns); what is read of it shows in the results of the entry that reads it.
    if (entry.outputs[i].role == OutputRole::Saved) continue;
    const std::string why = firstDifference(captured.outputs().at(i), reference.outputs().at(i));
    if (!why.empty()) {
      return "output " + std::to_string(i) + " " + outputName(entry, i) + " " + why;
    }
  }
  // Every input, not only those the program says it writes: nothing else may be written. Saved values
  // are lent until their reader has run, so they are gone now.
  for (size_t i = 0; i < captured.inputs().size(); ++i) {
    if (entry.inputs[i].role == InputRole::Saved) continue;
    const std::string why = firstDifference(captured.inputs()[i], reference.inputs()[i]);
    if (!why.empty()) {
      return "input " + std::to_string(i) + " %" + entry.graph->inputs()[i]->debugName() +
             ", after the entry ran, " + why;
    }
  }
  return "";
}

std::string RunCommand::compareStep(const Program& program, int64_t step, Side& captured,
                                    Side& reference) {
  captured.beginStep(step);
  reference.beginStep(step);
  for (const Entry& entry : program.entries) {
    const std::string where = "step " + std::to_string(step) + ", entry '" + entry.name + "': ";
    const c10::Device device = captured.runtime().device().tensorDevice();
    const GeneratorStates before(device);
    captured.run(entry);
    if (step == corrupt_) captured.flipBit();
    const GeneratorStates after(device);
    before.restore();
    reference.run(entry);
    std::string why = compareEntry(entry, captured, reference);
    if (!why.empty()) return where + why + " (captured first, then uncaptured)";
    why = after.firstDifference(GeneratorStates(device));
    if (!why.empty()) return where + why + " was left in different states";
  }
  captured.dropResults();
  reference.dropResults();
  return "";
}

std::vector<double> RunCommand::timeSteps(const Program& program, Side& side) const {
  std::vector<double> milliseconds;
  Device& device = side.runtime().device();
  for (int64_t step = 0; step < steps_; ++step) {
    side.beginStep(step);
    device.synchronize();
    const auto begin = std::chrono::steady_clock::now();
    for (const Entry& entry : program.entries) side.run(entry);
    device.synchronize();
    const std::chrono::duration<double, std::milli> spent =
        std::chrono::steady_clock::now() - begin;
    milliseconds.push_back(spent.count());
    side.dropResults();
  }
  return milliseconds;
}

int RunCommand::run() {
  checkFlags();
  std::unique_ptr<Device> device = makeDevice(device_);
  ProgramFile loaded = loadProgram(path_, true);
  const c10::Device tensors = device->tensorDevice();
  PassContext context{flags_.options(), {}};
  if (!flags_.alignmentGiven()) context.options.alignment = device->alignment();
  Program emitted, asGiven;
  try {
    // The buffers are inputs, which both sides are given.
    if (!isEmitted(loaded.program)) runPasses(loaded.program, context, {"accumulate-gradients"});
    emitted = loaded.program.clone();
    if (verify_) asGiven = loaded.program.clone();
    if (!isEmitted(emitted)) {
      PassContext quiet{context.options, {}};
      if (verify_) runPasses(asGiven, quiet, passesThatKeepCalls());
      runPasses(emitted, context);
    }
  } catch (const c10::Error& error) {
    throw FileError(loaded.file, messageOf(error));
  }

  for (c10::Device each : {c10::Device(at::kCPU), tensors}) {
    at::Generator generator = at::globalContext().defaultGenerator(each);
    generator.set_current_seed(static_cast<uint64_t>(seed_));
  }
  Device& faulty = *device;
  Side captured(loaded, emitted, std::move(device), {}, seed_);
  RunReport report;
  report.steps = steps_;
  injectFault(faulty);
  if (verify_) {
    RuntimeOptions uncaptured;
    uncaptured.uncaptured = true;
    Side reference(loaded, asGiven, makeDevice(device_), uncaptured, seed_);
    for (int64_t step = 0; step < steps_ && report.difference.empty(); ++step) {
      report.difference = compareStep(captured.runtime().program(), step, captured, reference);
    }
    report.verified = true;
  } else {
    report.milliseconds = timeSteps(captured.runtime().program(), captured);
  }
  appendRemarks(context.remarks, captured.runtime().remarks());
  fillReport(report, captured.runtime(), context.remarks);
  json_ ? printReportJson(report, llvm::outs()) : printReport(report, llvm::outs());
  llvm::outs().flush();
  remarkOutput_.write(context.remarks);
  return report.difference.empty() ? kOk : kFailed;
}

}  // namespace

std::unique_ptr<Command> makeRunCommand() { return std::make_unique<RunCommand>(); }

}  // namespace gravure::tool
