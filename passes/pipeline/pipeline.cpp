#include "passes/pipeline/pipeline.h"

#include "ir/check/verify.h"
#include "ir/core/nearest_name.h"
#include "passes/analysis/sharing.h"

#include <c10/util/Exception.h>
#include <llvm/ADT/STLExtras.h>
#include <llvm/ADT/StringExtras.h>
#include <llvm/ADT/StringRef.h>

#include <chrono>
#include <optional>

namespace gravure {
namespace {

const Pass& passOf(llvm::StringRef name) {
  if (const Pass* pass = findPass(std::string_view(name))) return *pass;
  std::vector<std::string> known;
  for (const Pass& each : allPasses()) known.emplace_back(each.name);
  TORCH_CHECK(false, "there is no pass '", name.str(), "'", didYouMean(name, known));
}

/// Adds `text`, NAME or NAME=value, to the options of `listed`.
void addOption(ListedPass& listed, llvm::StringRef text) {
  const auto [name, value] = text.split('=');
  std::vector<std::string> known;
  for (const PassOption& option : listed.pass->options) {
    known.emplace_back(option.name);
    if (name != option.name) continue;
    PassOptions scratch;
    TORCH_CHECK(option.set(scratch, std::string_view(value)), listed.pass->name, "{", option.name,
                "}: expected ", option.expected, ", found '", value.str(), "'");
    listed.options.emplace_back(&option, value.str());
    return;
  }
  TORCH_CHECK(!known.empty(), listed.pass->name, " has no options, and was given '", name.str(),
              "'");
  TORCH_CHECK(false, listed.pass->name, " has no option '", name.str(), "'",
              didYouMean(name, known).empty() ? ";" : didYouMean(name, known), " it has ",
              llvm::join(known, ", "));
}

/// Reads one pass with its options from the front of `rest`.
ListedPass takeListedPass(llvm::StringRef& rest) {
  const llvm::StringRef name = rest.substr(0, rest.find_first_of(",{")).trim();
  ListedPass listed{&passOf(name)};
  rest = rest.substr(rest.find_first_of(",{"));
  if (!rest.consume_front("{")) return listed;
  const size_t end = rest.find('}');
  TORCH_CHECK(end != llvm::StringRef::npos, "expected '}' behind the options of ",
              listed.pass->name, ", found '", rest.str(), "'");
  llvm::SmallVector<llvm::StringRef, 4> options;
  rest.substr(0, end).split(options, ' ', -1, /*KeepEmpty=*/false);
  for (llvm::StringRef option : options) addOption(listed, option);
  rest = rest.substr(end + 1).ltrim();
  TORCH_CHECK(rest.empty() || rest.front() == ',', "expected ',' behind the options of ",
              listed.pass->name, ", found '", rest.str(), "'");
  return listed;
}

void setOptions(PassOptions& options, const ListedPass& listed) {
  for (const auto& [option, value] : listed.options) option->set(options, value);
}

/// Names of the passes that bring `fact` about.
std::string makersOf(ProgramFact fact) {
  std::string names;
  for (const Pass& pass : allPasses()) {
    if (pass.makes.has(fact)) names += (names.empty() ? "" : " or ") + std::string(pass.name);
  }
  return names;
}

double msSince(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin)
      .count();
}

/// Runs one list on one program.
class PipelineRun {
 public:
  PipelineRun(Program& program, PassContext& context, const PipelineOptions& options)
      : program_(program), context_(context), options_(options),
        records_(options.records ? *options.records : ownRecords_) {
    context.verify = options.verifyEach;
    context.analyses.forget();
    context.analyses.beginToKeep();
    if (options.verifyEach) sharing_.emplace(program, context.analyses);
  }
  ~PipelineRun() { context_.analyses = {}; }
  PipelineRun(const PipelineRun&) = delete;
  PipelineRun& operator=(const PipelineRun&) = delete;

  void run(const Pipeline& pipeline) {
    for (const ListedPass& listed : pipeline) runPass(listed);
    if (!options_.verifyEach || options_.verifyFacts || pipeline.empty()) return;
    try {
      verifyProgram(program_);
    } catch (const c10::Error& error) {
      TORCH_INTERNAL_ASSERT(
          false, "the passes leave a program that is wrong: ", error.what_without_backtrace());
    }
  }

 private:
  void runPass(const ListedPass& listed) {
    const Pass& pass = *listed.pass;
    setOptions(context_.options, listed);
    PassRecord& record = records_.emplace_back();
    record.pass = &pass;
    record.firstRemark = context_.remarks.all().size();
    const int64_t asked = context_.rewrites.asked();
    if (options_.verifyEach) checkNeeds(pass);
    if (options_.beforePass) options_.beforePass(pass, program_);

    record.phase = PassPhase::Run;
    context_.unchanged = false;
    auto begin = std::chrono::steady_clock::now();
    pass.run(program_, context_);
    forgetWhatChanged(pass);
    record.runMs = msSince(begin);
    record.remarks = context_.remarks.all().size() - record.firstRemark;
    record.rewrites = context_.rewrites.asked() - asked;

    record.phase = PassPhase::Verify;
    begin = std::chrono::steady_clock::now();
    lost_ = lost_.without(pass.makes) | holds_.without(pass.keeps | pass.makes);
    holds_ = (holds_ & pass.keeps) | pass.makes;
    if (options_.verifyEach) verify(pass);
    record.verifyMs = msSince(begin);

    record.phase = PassPhase::After;
    if (options_.afterPass) options_.afterPass(pass, program_);
    record.phase = PassPhase::Done;
  }

  /// True if the program has the calls, operands and order that it had before `pass`.
  bool isOnlyMarked(const Pass& pass) const {
    return context_.unchanged || pass.changes == PassChanges::Marks;
  }

  void forgetWhatChanged(const Pass& pass) {
    if (!isOnlyMarked(pass)) {
      context_.analyses.forget();
    } else if (pass.makes.has(ProgramFact::OperandTags)) {
      context_.analyses.forgetCopies();
    }
  }

  void checkNeeds(const Pass& pass) {
    pass.needs.without(holds_).forEach([&](ProgramFact fact) {
      try {
        checkFact(fact, program_, context_);
      } catch (const c10::Error& error) {
        TORCH_CHECK(false, pass.name, " needs ", factName(fact), ", which ",
                    lost_.has(fact) ? "a pass before it did not keep"
                                    : "no pass before it makes and the program does not have",
                    "; run ", makersOf(fact), " right before it (", error.what_without_backtrace(),
                    ")");
      }
      holds_ = holds_ | FactSet{fact};
    });
  }

  void verify(const Pass& pass) {
    if (pass.verify) pass.verify(program_, context_);
    if (options_.verifyFacts) context_.analyses.check(program_);
    if (!isOnlyMarked(pass)) {
      Sharing now(program_, context_.analyses);
      const std::string broken = now.breaksRule(*sharing_);
      TORCH_INTERNAL_ASSERT(broken.empty(), pass.name, ": ", broken);
      sharing_ = std::move(now);
    }
    if (!options_.verifyFacts) return;
    verifyProgram(program_);
    holds_.forEach([&](ProgramFact fact) {
      try {
        checkFact(fact, program_, context_);
      } catch (const c10::Error& error) {
        TORCH_INTERNAL_ASSERT(false, pass.name, " was to leave the program with ", factName(fact),
                              ": ", error.what_without_backtrace());
      }
    });
  }

  Program& program_;
  PassContext& context_;
  const PipelineOptions& options_;
  std::vector<PassRecord> ownRecords_;
  std::vector<PassRecord>& records_;
  std::optional<Sharing> sharing_;  // as it was before the pass that runs
  FactSet holds_;                   // passes say so, or it was checked
  FactSet lost_;                    // passes did not keep them
};

}  // namespace

Pipeline parsePipeline(std::string_view text) {
  Pipeline pipeline;
  llvm::StringRef rest = llvm::StringRef(text).ltrim();
  while (!rest.empty()) {
    if (rest.consume_front(",")) {
      rest = rest.ltrim();
    } else if (rest.substr(0, rest.find_first_of(",{")).trim() == "all") {
      rest = rest.substr(rest.find_first_of(",{"));
      TORCH_CHECK(!rest.starts_with("{"), "'all' has no options; its passes have, and flags");
      llvm::append_range(pipeline, wholePipeline());
    } else {
      pipeline.push_back(takeListedPass(rest));
    }
  }
  return pipeline;
}

std::string pipelineText(const Pipeline& pipeline) {
  std::string text;
  for (const ListedPass& listed : pipeline) {
    text += (text.empty() ? "" : ",") + std::string(listed.pass->name);
    std::string options;
    for (const auto& [option, value] : listed.options) {
      options += (options.empty() ? "" : " ") + std::string(option->name);
      if (!value.empty()) options += "=" + value;
    }
    if (!options.empty()) text += "{" + options + "}";
  }
  return text;
}

Pipeline pipelineOf(const std::vector<std::string>& names) {
  Pipeline pipeline;
  for (const std::string& name : names) pipeline.push_back({&passOf(name)});
  return pipeline;
}

Pipeline wholePipeline() {
  Pipeline pipeline;
  for (const Pass& pass : allPasses()) pipeline.push_back({&pass});
  return pipeline;
}

Pipeline withAllOptions(const Pipeline& pipeline, PassOptions options) {
  Pipeline whole;
  for (const ListedPass& listed : pipeline) {
    setOptions(options, listed);
    ListedPass& full = whole.emplace_back(ListedPass{listed.pass});
    for (const PassOption& option : listed.pass->options) {
      full.options.emplace_back(&option, option.get(options));
    }
  }
  return whole;
}

void runPipeline(Program& program, PassContext& context, const Pipeline& pipeline,
                 const PipelineOptions& options) {
  PipelineRun(program, context, options).run(pipeline);
}

void runPasses(Program& program, PassContext& context, const std::vector<std::string>& names,
               const PipelineOptions& options) {
  runPipeline(program, context, names.empty() ? wholePipeline() : pipelineOf(names), options);
}

}  // namespace gravure
