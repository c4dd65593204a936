#pragma once
// What a pass is, and the list of all of them. passes/pipeline/pipeline.h runs lists of them.

#include "ir/core/program.h"
#include "ir/core/remark.h"
#include "passes/analysis/kept_analyses.h"
#include "passes/program_facts.h"
#include "passes/rewrite_limit.h"

#include <llvm/ADT/ArrayRef.h>

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace gravure {

enum class PartitionOrder : uint8_t { Levels, Program };

/// Options of every pass; each says what it changes. Same program and options, same result.
struct PassOptions {
  /// classify-capturability: operators ("aten::mm", "aten::add.Tensor") and module paths
  /// ("blocks.3.moe", with all below) that the user wants outside graphs.
  std::vector<std::string> hostRequests;
  /// classify-capturability: operators that take a float which the host reads in the same step may be
  /// captured; the runtime writes it into their kernels before a replay, or runs their partition
  /// uncaptured.
  bool writeNumbers = false;
  /// partition-graph: how it orders nodes.
  PartitionOrder order = PartitionOrder::Levels;
  /// partition-graph: partitions of fewer operator calls become host nodes.
  int64_t minPartitionSize = 2;
  /// partition-graph by levels: planned peak bytes may grow over program order's by this share, or by
  /// memorySlack bytes, whichever is more: a share of a tiny peak is next to nothing.
  double memoryGrowth = 0.10;
  int64_t memorySlack = int64_t{64} << 20;
  /// plan-memory: alignment of buffers in bytes (512 is the caching allocator's; the host device
  /// needs 64).
  int64_t alignment = 512;
  /// batch-pointwise and place-products: the rows of a piece take a multiple of so many bytes, so that
  /// pieces lie at such multiples in their whole. pieceAlignmentOfBlas() says what the products here
  /// need; the default does for all.
  int64_t pieceAlignment = 256;
  /// accumulate-gradients: gradients are added to buffers that the caller gives, and not returned.
  bool accumulateGradients = false;
};

struct PartitionPlan;

struct PassContext {
  PassOptions options;
  Remarks remarks;
  /// Passes check what they decided before they carry it out. runPasses sets it.
  bool verify = true;
  RewriteLimit rewrites = {};
  /// What partition-graph decided, one an entry, in their order; nullptr before it ran. Later passes
  /// move the nodes in it and destroy none of them.
  std::shared_ptr<const std::vector<PartitionPlan>> partitionPlans = nullptr;
  /// What passes find out about memory. Ask here before working it out anew.
  KeptAnalyses analyses = {};
  /// A pass that has left the program as it was says so: then what is in `analyses` still holds.
  bool unchanged = false;
};

/// What a pass changes. Each kind may do what those before it do.
enum class PassChanges : uint8_t {
  Marks,    // attributes of nodes: calls, their operands and their order stay
  Program,  // all but the calls that are made
  Calls,    // other calls are made, whose results have the same bits
};

/// An option as the text of a pipeline gives it to its pass (passes/pipeline/pipeline.h).
struct PassOption {
  const char* name;      // "min-size"
  const char* expected;  // "a whole number of at least 1"
  /// False if it does not take `value`, which is "" where the text gives none.
  bool (*set)(PassOptions&, std::string_view value);
  /// A value that `set` takes.
  std::string (*get)(const PassOptions&);
};

/// One pass. `run` rewrites or annotates the program in place, by what stands in the program and the
/// options alone; `verify`, if there is one, throws c10::Error where the program breaks the definition
/// of what `run` writes. Asking what `run` would still find is no proof of it, and not done.
struct Pass {
  const char* name;     // stem: flag, file, function, golden folder, docs page
  const char* summary;  // one line, for --list-passes
  void (*run)(Program&, PassContext&);
  void (*verify)(const Program&, const PassContext&) = nullptr;
  PassChanges changes = PassChanges::Program;
  FactSet needs = {};  // what `run` relies on
  FactSet makes = {};  // what holds afterwards
  FactSet keeps = {};  // what holds afterwards if it held before; nothing else does
  llvm::ArrayRef<PassOption> options = {};
};

/// All passes in the order of the pipeline.
const std::vector<Pass>& allPasses();
/// Names of the passes that leave the calls of a program as they are, in the order of the pipeline:
/// what the program with all passes is compared with.
std::vector<std::string> passesThatKeepCalls();
/// The pass of that name, nullptr if there is none.
const Pass* findPass(std::string_view name);

/// How far a pass came. After: PipelineOptions::afterPass.
enum class PassPhase : uint8_t { Needs, Run, Verify, After, Done };

/// What one pass of a list did, as far as it came.
struct PassRecord {
  const Pass* pass = nullptr;
  PassPhase phase = PassPhase::Needs;
  double runMs = 0, verifyMs = 0;  // wall time
  size_t firstRemark = 0, remarks = 0;
  int64_t rewrites = 0;  // that it asked for
};

struct PipelineOptions {
  /// Before each pass, that the program has the facts that it needs; after each, its own verifier, and,
  /// where it changed more than marks, that the inputs and results share no memory that they did not
  /// share before (passes/analysis/sharing.h); the checks that passes make on the way; and
  /// verifyProgram() after the last one.
  bool verifyEach = true;
  /// With verifyEach: after each pass verifyProgram(), every fact that passes say holds, and that what
  /// is kept in PassContext::analyses is what would be found now.
  bool verifyFacts = false;
  std::function<void(const Pass&, const Program&)> beforePass = nullptr;
  std::function<void(const Pass&, const Program&)> afterPass = nullptr;
  /// If not null: filled on the way, one a pass; where a pass throws, the last one tells where.
  std::vector<PassRecord>* records = nullptr;
};
/// Runs `names` (all, in order, if empty). TORCH_CHECK names a near name for a wrong one, and what is
/// missing where the program lacks what a pass needs.
void runPasses(Program& program, PassContext& context, const std::vector<std::string>& names = {},
               const PipelineOptions& options = {});

}  // namespace gravure
