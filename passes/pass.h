#pragma once
// What a pass is, and the list of all of them.

#include "ir/core/program.h"
#include "ir/core/remark.h"

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace gravure {

enum class PartitionOrder : uint8_t { Levels, Program };

/// Options of every pass; each says what it changes. Same program and options, same result.
struct PassOptions {
  /// Operators ("aten::mm", "aten::add.Tensor") and module paths ("blocks.3.moe", with all below)
  /// that the user wants outside graphs. From `--host`.
  std::vector<std::string> hostRequests;
  /// How partition-graph orders nodes.
  PartitionOrder order = PartitionOrder::Levels;
  /// Partitions of fewer operator calls become host nodes.
  int64_t minPartitionSize = 2;
  /// With levels: planned peak bytes may grow over program order by this share of it, or by
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

struct PassContext {
  PassOptions options;
  Remarks remarks;
  /// Passes check what they decided before they carry it out. runPasses sets it.
  bool verify = true;
};

/// One pass. `run` rewrites or annotates the program in place, by what stands in the program and the
/// options alone; `verify`, if there is one, throws c10::Error where the program breaks the definition
/// of what `run` writes. Asking what `run` would still find is no proof of it, and not done.
struct Pass {
  const char* name;     // stem: flag, file, function, golden folder, docs page
  const char* summary;  // one line, for --list-passes
  void (*run)(Program&, PassContext&);
  void (*verify)(const Program&, const PassContext&) = nullptr;
  bool changesCalls = false;  // other calls are made, whose results have the same bits
};

/// All passes in the order of the pipeline.
const std::vector<Pass>& allPasses();
/// Names of the passes that leave the calls of a program as they are, in the order of the pipeline:
/// what the program with all passes is compared with.
std::vector<std::string> passesThatKeepCalls();
/// The pass of that name, nullptr if there is none.
const Pass* findPass(std::string_view name);

struct PipelineOptions {
  /// After each pass its own verifier, and that the inputs and results share no memory that they did
  /// not share before (passes/analysis/sharing.h); and the checks that passes make on the way.
  bool verifyEach = true;
  /// Called after each pass.
  std::function<void(const Pass&, const Program&)> afterPass;
};
/// Runs `names` (all, in order, if empty). TORCH_CHECK names the nearest valid name for a wrong one.
void runPasses(Program& program, PassContext& context, const std::vector<std::string>& names = {},
               const PipelineOptions& options = {});

}  // namespace gravure
