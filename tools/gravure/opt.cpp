#include "tools/gravure/opt.h"

#include "ir/check/verify.h"
#include "ir/text/program_text.h"
#include "tools/gravure/load.h"
#include "tools/gravure/pass_flags.h"
#include "tools/gravure/proof.h"
#include "tools/gravure/remark_output.h"

#include <llvm/Support/Format.h>
#include <llvm/Support/raw_ostream.h>

namespace gravure::tool {
namespace {

namespace cl = llvm::cl;

/// Stands between programs that are printed one after another, as --split-input reads them.
constexpr const char* kSeparator = "# -----\n";

/// Of the last node of a program's first entry that has two of one type.
void exchangeOperands(Program& program) {
  for (Node* node : program.entries.front().graph->nodes().reverse()) {
    if (node->inputs().size() < 2 || !(*node->input(0)->type() == *node->input(1)->type()))
      continue;
    Value* first = node->input(0);
    node->replaceInput(0, node->input(1));
    node->replaceInput(1, first);
    return;
  }
}

class OptCommand final : public Command {
 public:
  OptCommand() : Command("opt", "run passes on a program text and print the result") {}

  int run() override;

 private:
  std::vector<std::string> chosenPasses() const;
  std::unique_ptr<Proof> proofOf(const Program& program, const std::string& file) const;
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

std::unique_ptr<Proof> OptCommand::proofOf(const Program& program, const std::string& file) const {
  ProofOptions options;
  options.seed = static_cast<uint64_t>(seed_.getValue());
  const bool alone = file_ != "-" && !splitInput_;
  const auto saved = alone ? inputsBeside(file) : std::nullopt;
  return std::make_unique<Proof>(program, options, saved ? &*saved : nullptr);
}

void OptCommand::processPart(const InputPart& part, const std::vector<std::string>& names,
                             Remarks& remarks) {
  const bool verify = verifyEach_ && !noVerify_;
  const std::string file = file_ == "-" ? "<stdin>" : file_.getValue();
  Program program = readProgram(part.text, file, part.firstLine);
  PassContext context{flags_.options(), {}};
  try {
    if (verify) verifyProgram(program);
    const auto proof = checkBits_ ? proofOf(program, file) : nullptr;
    PipelineOptions pipeline;
    pipeline.verifyEach = verify;
    pipeline.afterPass = [&](const Pass& pass, const Program& p) {
      if (corrupt_ && pass.name == names.back()) exchangeOperands(program);
      if (verify) verifyProgram(p);
      const std::string why = proof ? proof->differenceOf(p) : "";
      TORCH_CHECK(why.empty(), "--check-bits: ", pass.name,
                  " changed what the program does (before, then after): ", why);
      if (printAfterAll_) print(p, pass.name);
    };
    if (!names.empty()) runPasses(program, context, names, pipeline);
    if (proof) {
      llvm::errs() << file << ": the same bits before and after " << names.size()
                   << (names.size() == 1 ? " pass\n" : " passes\n");
    }
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
  if (checkBits_ && names.empty()) {
    throw UsageError("--check-bits: there is no pass to check; name some with --passes");
  }
  if (seed_.getNumOccurrences() > 0 && !checkBits_) {
    throw UsageError("--seed: only --check-bits draws; add it");
  }
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
