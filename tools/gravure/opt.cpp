#include "tools/gravure/opt.h"

#include "ir/program_text.h"
#include "ir/verify.h"
#include "tools/gravure/pass_flags.h"
#include "tools/gravure/remark_output.h"

#include <llvm/Support/Format.h>
#include <llvm/Support/raw_ostream.h>

namespace gravure::tool {
namespace {

namespace cl = llvm::cl;

/// Stands between programs that are printed one after another, as --split-input reads them.
constexpr const char* kSeparator = "# -----\n";

class OptCommand final : public Command {
 public:
  OptCommand() : Command("opt", "run passes on a program text and print the result") {}

  int run() override;

 private:
  std::vector<std::string> chosenPasses() const;
  void processPart(const InputPart& part, const std::vector<std::string>& names, Remarks& remarks);
  /// Prints `program`, apart from what was printed before.
  void print(const Program& program, llvm::StringRef title);

  template <typename T>
  using Opt = cl::opt<T>;
  Opt<std::string> file_{cl::Positional, cl::desc("FILE|-"), cl::sub(sub()), cl::cat(category())};
  Opt<std::string> passes_{"passes", cl::value_desc("a,b|all"),
                           cl::desc("the passes to run, in this order (default: none)"),
                           cl::sub(sub()), cl::cat(category())};
  Opt<bool> listPasses_{"list-passes", cl::desc("print all passes in the order of the pipeline"),
                        cl::sub(sub()), cl::cat(category())};
  Opt<bool> printAfterAll_{"print-after-all", cl::desc("print the program after each pass"),
                           cl::sub(sub()), cl::cat(category())};
  Opt<bool> verifyEach_{"verify-each", cl::init(true),
                        cl::desc("verify the program first and after each pass (default)"),
                        cl::sub(sub()), cl::cat(category())};
  Opt<bool> noVerify_{"no-verify", cl::desc("do not verify"), cl::sub(sub()), cl::cat(category())};
  Opt<bool> splitInput_{"split-input",
                        cl::desc("take the parts between lines of '# -----' as one program each"),
                        cl::sub(sub()), cl::cat(category())};
  PassFlags flags_{*this};
  RemarkOutput remarkOutput_{*this};
  bool printed_ = false;
};

std::vector<std::string> OptCommand::chosenPasses() const {
  std::vector<std::string> known = passNames(), names;
  for (std::string& name : splitList(passes_.getValue())) {
    if (name == "all") {
      names.insert(names.end(), known.begin(), known.end());
    } else if (findPass(name)) {
      names.push_back(std::move(name));
    } else {
      throw UsageError("--passes: there is no pass '" + name + "'" + didYouMean(name, known) +
                       " (gravure opt --list-passes)");
    }
  }
  return names;
}

void OptCommand::print(const Program& program, llvm::StringRef title) {
  llvm::raw_ostream& os = llvm::outs();
  if (printed_) os << kSeparator;
  if (!title.empty()) os << "# after " << title << '\n';
  printProgram(program, os);
  printed_ = true;
}

void OptCommand::processPart(const InputPart& part, const std::vector<std::string>& names,
                             Remarks& remarks) {
  const bool verify = verifyEach_ && !noVerify_;
  const std::string file = file_ == "-" ? "<stdin>" : file_.getValue();
  Program program = readProgram(part.text, file, part.firstLine);
  PassContext context{flags_.options(), {}};
  try {
    if (verify) verifyProgram(program);
    PipelineOptions pipeline;
    pipeline.verifyEach = verify;
    pipeline.afterPass = [&](const Pass& pass, const Program& p) {
      if (verify) verifyProgram(p);
      if (printAfterAll_) print(p, pass.name);
    };
    if (!names.empty()) runPasses(program, context, names, pipeline);
    if (!printAfterAll_ || names.empty()) print(program, "");
  } catch (const c10::Error& error) {
    appendRemarks(remarks, context.remarks);
    throw FileError(file, messageOf(error));
  }
  appendRemarks(remarks, context.remarks);
}

int OptCommand::run() {
  if (listPasses_) {
    for (const Pass& pass : allPasses()) {
      llvm::outs() << llvm::format("%-24s %s\n", pass.name, pass.summary);
    }
    return kOk;
  }
  if (file_.empty()) throw UsageError("opt: expected a program text, or - for standard input");
  remarkOutput_.check();
  const std::vector<std::string> names = chosenPasses();
  (void)flags_.options();
  const std::string text = readText(file_);
  const std::vector<InputPart> parts =
      splitInput_ ? splitInputs(text) : std::vector<InputPart>{{text, 1}};
  Remarks remarks;
  int status = kOk;
  for (const InputPart& part : parts) {
    try {
      processPart(part, names, remarks);
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
