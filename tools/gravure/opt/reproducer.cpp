#include "tools/gravure/opt/reproducer.h"

#include "ir/text/program_text.h"
#include "passes/pipeline/reproducer_head.h"
#include "tools/gravure/command/command.h"
#include "tools/gravure/proof/reduce_program.h"

#include <llvm/ADT/StringExtras.h>

namespace gravure::tool {
namespace {

/// Sets in `run` what one line says.
void readFlag(PassRun& run, llvm::StringRef flag) {
  int64_t number = 0;
  const auto whole = [&](llvm::StringRef text) { return !text.getAsInteger(10, number); };
  const auto proof = [&]() -> ProofOptions& {
    if (!run.proof) run.proof.emplace();
    return *run.proof;
  };
  llvm::StringRef rest = flag;
  if (rest.consume_front("--passes=")) {
    run.pipeline = parsePipeline(std::string_view(rest));
  } else if (rest == "--check-bits") {
    proof();
  } else if (rest.consume_front("--seed=") && whole(rest)) {
    proof().seed = static_cast<uint64_t>(number);
  } else if (rest == "--no-verify") {
    run.verify = false;
  } else if (rest == "--corrupt") {
    run.corrupt = true;
  } else if (rest.consume_front("--bisect-limit=") && whole(rest)) {
    run.rewriteLimit = number;
  } else {
    TORCH_CHECK(false, "a reproducer has no '", flag.str(),
                "'; it has --passes, --check-bits, --seed, --no-verify, --corrupt, --bisect-limit");
  }
}

PassRun limited(PassRun run, int64_t rewrites) {
  run.rewriteLimit = rewrites;
  return run;
}

/// The run without the pass at position `i`.
PassRun without(PassRun run, size_t i) {
  run.pipeline.erase(run.pipeline.begin() + static_cast<std::ptrdiff_t>(i));
  return run;
}

}  // namespace

std::string reproducerText(const PassRun& run, const Program& given, const PassFailure& failure) {
  std::vector<std::string> flags;
  if (!run.verify) flags.emplace_back("--no-verify");
  if (run.proof) flags.emplace_back("--check-bits");
  if (run.proof) flags.push_back("--seed=" + std::to_string(run.proof->seed));
  if (run.rewriteLimit) flags.push_back("--bisect-limit=" + std::to_string(*run.rewriteLimit));
  if (run.corrupt) flags.emplace_back("--corrupt");
  std::string text = reproducerHead(run.pipeline, run.options, flags, failure.message);
  if (!failure.lastRewrite.empty()) text += "# last rewrite: " + failure.lastRewrite + "\n";
  return text + programText(given);
}

std::optional<PassRun> reproducerRun(std::string_view text, const std::string& file,
                                     size_t firstLine) {
  std::optional<PassRun> run;
  llvm::StringRef rest(text);
  for (size_t line = firstLine; rest.starts_with("#"); ++line) {
    llvm::StringRef flag;
    std::tie(flag, rest) = rest.split('\n');
    if (!flag.consume_front(kReproducerMark)) continue;
    if (!run) run.emplace();
    try {
      readFlag(*run, flag.trim());
    } catch (const c10::Error& error) {
      throw FileError(file + ":" + std::to_string(line), messageOf(error));
    }
  }
  return run;
}

Reduced reduceFailure(PassRun run, const Program& given, const PassFailure& failure) {
  run.pipeline.resize(failure.position + 1);
  run.pipeline = withAllOptions(run.pipeline, run.options);  // a pass that goes leaves its options
  const auto fails = [&](const PassRun& with, const Program& program) {
    const auto seen = failureOf(with, program);
    return seen && seen->position + 1 == with.pipeline.size() && seen->phase == failure.phase;
  };
  const auto dropPasses = [&](const Program& program) {
    for (size_t i = run.pipeline.size() - 1; i-- > 0;) {
      try {
        if (fails(without(run, i), program)) run = without(run, i);
      } catch (const c10::Error&) {
        // It is wrong before a pass runs.
      }
    }
  };
  Program program = given.clone();
  dropPasses(program);
  program =
      reduced(std::move(program), [&](const Program& smaller) { return fails(run, smaller); });
  dropPasses(program);
  if (!run.rewriteLimit) {
    int64_t well = -1, bad = failureOf(run, program).value_or(failure).rewrites;
    while (bad - well > 1) {
      const int64_t middle = well + (bad - well) / 2;
      (fails(limited(run, middle), program) ? bad : well) = middle;
    }
    // Where it fails with none, no rewrite is to blame.
    if (bad > 0 && fails(limited(run, bad), program)) run.rewriteLimit = bad;
  }
  const auto last = failureOf(run, program);
  return {std::move(run), std::move(program), last.value_or(failure)};
}

}  // namespace gravure::tool
