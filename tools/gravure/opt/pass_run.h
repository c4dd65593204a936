#pragma once
// One list of passes on one program with all checks that gravure opt makes, as a value: what a
// reproducer writes down and a reducer repeats.

#include "passes/pipeline/pipeline.h"
#include "tools/gravure/proof/proof.h"

#include <optional>
#include <string>
#include <vector>

namespace gravure::tool {

struct PassRun {
  Pipeline pipeline;
  PassOptions options;                  // before the first pass
  bool verify = true;                   // structure, facts, and each pass by its own verifier
  std::optional<ProofOptions> proof;    // compares in bits after each pass
  std::optional<int64_t> rewriteLimit;  // how many rewrites are made
  bool corrupt = false;  // exchanges two operands after the last pass, to see a proof fail
};

/// What a pass did wrong, or refused.
struct PassFailure {
  size_t position = 0;  // in the pipeline
  PassPhase phase = PassPhase::Run;
  std::string message;      // one line
  int64_t rewrites = 0;     // that passes asked for up to there
  std::string lastRewrite;  // under a limit, the last one that was made
};

/// Called on the way; each may be empty.
struct PassVisits {
  std::function<void(const Pass&, const Program&)> before, after;
};

/// Runs it on `program`. nullopt if all is well, else what the first pass that fails did. `context` has
/// the remarks up to there. c10::Error if the program is wrong, or nothing can be proven of it, before any
/// pass runs. `saved`: inputs to draw like, or nullptr.
std::optional<PassFailure> runChecked(const PassRun& run, Program& program, PassContext& context,
                                      const SavedInputs* saved, const PassVisits& visits,
                                      std::vector<PassRecord>& records);
/// The same on a copy.
std::optional<PassFailure> failureOf(const PassRun& run, const Program& program);

}  // namespace gravure::tool
