#include "tools/gravure/opt/opt.h"

#include "ir/core/nearest_name.h"
#include "ir/text/program_text.h"
#include "tools/gravure/command/load.h"
#include "tools/gravure/command/pass_flags.h"
#include "tools/gravure/command/remark_output.h"
#include "tools/gravure/opt/pass_run.h"
#include "tools/gravure/opt/pass_tables.h"
#include "tools/gravure/opt/program_prints.h"
#include "tools/gravure/opt/reproducer.h"

#include <llvm/ADT/STLExtras.h>
#include <llvm/Support/FileSystem.h>
#include <llvm/Support/raw_ostream.h>

namespace gravure::tool {
namespace {

namespace cl = llvm::cl;

class OptCommand final : public Command {
 public:
  OptCommand() : Command("opt", "run passes on a program text and print the result") {}

  int run() override;

 private:
  void checkFlags() const;
  PassRun chosenRun(const InputPart& part, const std::string& file) const;
  void cutPipeline(Pipeline& pipeline) const;
  void processPart(const InputPart& part, Remarks& remarks);
  void reduce(const PassRun& run, const Program& given, const std::string& file) const;
  void writeReproducer(const std::string& text) const;
  std::string fileName() const { return file_ == "-" ? "<stdin>" : file_.getValue(); }

  template <typename T>
  using Opt = cl::opt<T>;
  Opt<std::string> file_{cl::Positional, cl::desc("FILE|-"), cl::sub(sub()), cl::cat(category())};
  Opt<std::string> passes_{
      "passes", cl::value_desc("a,b{option=value}|all"),
      cl::desc("the passes to run, in this order (default: none, or those of a reproducer)"),
      cl::sub(sub()), cl::cat(category())};
  Opt<std::string> startAfter_{"start-after", cl::value_desc("PASS"),
                               cl::desc("leave out this pass and those before it"), cl::sub(sub()),
                               cl::cat(category())};
  Opt<std::string> stopBefore_{"stop-before", cl::value_desc("PASS"),
                               cl::desc("leave out this pass and those behind it"), cl::sub(sub()),
                               cl::cat(category())};
  Opt<bool> listPasses_{"list-passes", cl::desc("print all passes in the order of the pipeline"),
                        cl::sub(sub()), cl::cat(category())};
  ProgramPrints prints_{*this};
  Opt<bool> verifyEach_{"verify-each", cl::init(true),
                        cl::desc("verify the program first and after each pass (default)"),
                        cl::sub(sub()), cl::cat(category())};
  Opt<bool> noVerify_{"no-verify", cl::desc("do not verify, nor ask for what passes need"),
                      cl::sub(sub()), cl::cat(category())};
  Opt<bool> checkBits_{
      "check-bits",
      cl::desc("run the program before and after each pass on drawn inputs, on the "
               "host device with poison; they must do the same in every bit"),
      cl::sub(sub()), cl::cat(category())};
  Opt<long> seed_{
      "seed",         cl::value_desc("S"),
      cl::init(0),    cl::desc("seed of the inputs that --check-bits draws (default 0)"),
      cl::sub(sub()), cl::cat(category())};
  Opt<bool> corrupt_{
      "corrupt", cl::ReallyHidden,
      cl::desc("exchange two operands after the last pass, to see --check-bits fail"),
      cl::sub(sub()), cl::cat(category())};
  Opt<long> bisectLimit_{"bisect-limit", cl::value_desc("N"),
                         cl::desc("make the first N rewrites and partitions alone, and say which "
                                  "was the last"),
                         cl::sub(sub()), cl::cat(category())};
  Opt<std::string> reproducer_{"reproducer", cl::value_desc("FILE"),
                               cl::desc("where a pass fails, write program, passes and options to "
                                        "FILE, which gravure opt runs as it is"),
                               cl::sub(sub()), cl::cat(category())};
  Opt<bool> reduce_{"reduce",
                    cl::desc("look for fewer passes and a smaller program that fail like this "
                             "one, and print them, or write them to --reproducer"),
                    cl::sub(sub()), cl::cat(category())};
  Opt<bool> stats_{"stats", cl::desc("print what each pass did to standard error"), cl::sub(sub()),
                   cl::cat(category())};
  Opt<bool> timePasses_{"time-passes", cl::desc("print the time of each pass to standard error"),
                        cl::sub(sub()), cl::cat(category())};
  Opt<bool> splitInput_{"split-input",
                        cl::desc("take the parts between lines of '# -----' as one program each"),
                        cl::sub(sub()), cl::cat(category())};
  PassFlags flags_{*this};
  RemarkOutput remarkOutput_{*this};
};

Pipeline readPipeline(const std::string& text) {
  try {
    return parsePipeline(text);
  } catch (const c10::Error& error) {
    throw UsageError("--passes: " + messageOf(error) + " (gravure opt --list-passes)");
  }
}

void sayLimit(int64_t limit, const RewriteLimit& rewrites) {
  llvm::errs() << "--bisect-limit=" << limit << ": ";
  if (rewrites.asked() <= limit) {
    llvm::errs() << "all " << rewrites.asked() << " rewrites were made";
  } else {
    llvm::errs() << "there are more rewrites";
  }
  if (!rewrites.last().empty()) llvm::errs() << "; the last made: " << rewrites.last();
  llvm::errs() << '\n';
}

/// The position of a pass; UsageError if it is not in the list.
size_t positionOf(const char* flag, const std::string& name, const Pipeline& pipeline) {
  std::vector<std::string> names;
  for (const ListedPass& listed : pipeline) names.emplace_back(listed.pass->name);
  const auto found = llvm::find(names, name);
  if (found != names.end()) return static_cast<size_t>(found - names.begin());
  throw UsageError(std::string(flag) + ": '" + name + "' is not among the passes" +
                   didYouMean(name, names));
}

/// What --start-after and --stop-before leave; they take all passes where none are named.
void OptCommand::cutPipeline(Pipeline& pipeline) const {
  const bool cut = !startAfter_.empty() || !stopBefore_.empty();
  if (cut && pipeline.empty()) pipeline = wholePipeline();
  size_t begin = 0, end = pipeline.size();
  if (!stopBefore_.empty()) end = positionOf("--stop-before", stopBefore_, pipeline);
  if (!startAfter_.empty()) begin = positionOf("--start-after", startAfter_, pipeline) + 1;
  pipeline.resize(end);
  pipeline.erase(pipeline.begin(),
                 pipeline.begin() + static_cast<std::ptrdiff_t>(std::min(begin, end)));
}

/// What the flags say; where they name no passes, what a reproducer says of them and their options.
PassRun OptCommand::chosenRun(const InputPart& part, const std::string& file) const {
  std::optional<PassRun> asked;
  if (passes_.getNumOccurrences() == 0) asked = reproducerRun(part.text, file, part.firstLine);
  PassRun run = asked.value_or(PassRun{});
  if (!asked) {
    run.options = flags_.options();
    run.pipeline = readPipeline(passes_);
  }
  cutPipeline(run.pipeline);
  prints_.check(run.pipeline);
  if (!verifyEach_ || noVerify_) run.verify = false;
  if (checkBits_ && !run.proof) run.proof.emplace();
  if (seed_.getNumOccurrences() > 0) {
    if (!run.proof) throw UsageError("--seed: only --check-bits draws; add it");
    run.proof->seed = static_cast<uint64_t>(seed_);
  }
  if (bisectLimit_.getNumOccurrences() > 0) run.rewriteLimit = bisectLimit_;
  run.corrupt |= corrupt_;
  if (run.proof && run.pipeline.empty()) {
    throw UsageError("--check-bits: there is no pass to check; name some with --passes");
  }
  return run;
}

void OptCommand::writeReproducer(const std::string& text) const {
  std::error_code error;
  llvm::raw_fd_ostream os(reproducer_, error, llvm::sys::fs::OF_Text);
  if (!error) {
    os << text;
    os.close();
    error = os.error();
    os.clear_error();
  }
  if (error) throw UsageError("cannot write '" + reproducer_ + "': " + error.message());
}

void OptCommand::reduce(const PassRun& run, const Program& given, const std::string& file) const {
  const auto failure = failureOf(run, given);
  if (!failure)
    throw FileError(file, "--reduce: no pass fails on it, so nothing can be made smaller");
  const Reduced small = reduceFailure(run, given, *failure);
  const std::string text = reproducerText(small.run, small.program, small.failure);
  reproducer_.empty() ? void(llvm::outs() << text) : writeReproducer(text);
}

void OptCommand::processPart(const InputPart& part, Remarks& remarks) {
  const std::string file = fileName();
  const PassRun run = chosenRun(part, file);
  const Program given = readProgram(part.text, file, part.firstLine);
  PassContext context;
  std::vector<PassRecord> records;
  std::optional<PassFailure> failure;
  try {
    if (reduce_) return reduce(run, given, file);
    const bool alone = file_ != "-" && !splitInput_;
    const auto saved = run.proof && alone ? inputsBeside(file) : std::nullopt;
    Program program = given.clone();
    prints_.begin(program);
    const PassVisits visits{
        [&](const Pass& pass, const Program& now) { prints_.before(pass, now); },
        [&](const Pass& pass, const Program& now) { prints_.after(pass, now); }};
    failure = runChecked(run, program, context, saved ? &*saved : nullptr, visits, records);
    if (!failure && run.proof) {
      llvm::errs() << file << ": the same bits before and after " << run.pipeline.size()
                   << (run.pipeline.size() == 1 ? " pass\n" : " passes\n");
    }
    if (!failure) prints_.end(program);
  } catch (const c10::Error& error) {
    throw FileError(file, messageOf(error));
  }
  appendRemarks(remarks, context.remarks);
  if (run.rewriteLimit) sayLimit(*run.rewriteLimit, context.rewrites);
  if (stats_) printPassStats(records, context.remarks, llvm::errs());
  if (timePasses_) printPassTimes(records, llvm::errs());
  if (!failure) return;
  if (!reproducer_.empty()) {
    PassRun failing = run;
    failing.pipeline.resize(failure->position + 1);
    writeReproducer(reproducerText(failing, given, *failure));
  }
  throw FileError(file, failure->message);
}

void OptCommand::checkFlags() const {
  if (file_.empty()) throw UsageError("opt: expected a program text, or - for standard input");
  remarkOutput_.check();
  (void)readPipeline(passes_);
  (void)flags_.options();
  if (bisectLimit_.getNumOccurrences() > 0) checkWithin("--bisect-limit", bisectLimit_, 0);
  if (reproducer_.getNumOccurrences() > 0 && reproducer_.empty())
    throw UsageError("--reproducer: expected a file");
}

int OptCommand::run() {
  if (listPasses_) {
    printPasses(llvm::outs());
    return kOk;
  }
  checkFlags();
  const std::string text = readText(file_);
  const std::vector<InputPart> parts =
      splitInput_ ? splitInputs(text) : std::vector<InputPart>{{text, 1}};
  Remarks remarks;
  int status = kOk;
  for (const InputPart& part : parts) {
    try {
      processPart(part, remarks);
    } catch (const UsageError&) {
      throw;
    } catch (const std::exception& error) {
      llvm::outs().flush();
      llvm::errs() << messageOf(error) << '\n';
      status = kFailed;
    }
  }
  llvm::outs().flush();
  remarkOutput_.write(remarks);
  return status;
}

}  // namespace

std::unique_ptr<Command> makeOptCommand() { return std::make_unique<OptCommand>(); }

}  // namespace gravure::tool
