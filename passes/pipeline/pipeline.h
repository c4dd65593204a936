#pragma once
// A list of passes with their options, as text and as a value, and how it runs.
//
//   pipeline := listed (',' listed)*      classify-capturability{host=aten::mm,head},partition-graph
//   listed   := 'all' | PASS | PASS '{' option (' ' option)* '}'
//   option   := NAME '=' value            partition-graph{order=program min-size=3}
//             | NAME                      accumulate-gradients{enabled}
//   value    := any characters but ' ' and '}'
//
// Braces and spaces are MLIR's spelling. LLVM's, PASS<a=1;b>, has characters that a shell acts on
// without a word where the quotes are forgotten.
//
// An option holds from its pass on: what comes behind reads, and verifies, what that pass wrote by it
// (the alignment of a memory plan).

#include "passes/pass.h"

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace gravure {

/// A pass of a pipeline, and the options that stand behind it there.
struct ListedPass {
  const Pass* pass = nullptr;
  /// Each with a value that it takes, "" for none; in the order of the text.
  std::vector<std::pair<const PassOption*, std::string>> options = {};
};
using Pipeline = std::vector<ListedPass>;

/// TORCH_CHECK for a pass or an option that there is not (with the nearest and, for an option, all that
/// the pass has), and a value that an option does not take.
Pipeline parsePipeline(std::string_view text);
/// What parsePipeline reads as `pipeline`.
std::string pipelineText(const Pipeline& pipeline);
/// These passes without options of their own. TORCH_CHECK as parsePipeline.
Pipeline pipelineOf(const std::vector<std::string>& names);
/// The whole pipeline.
Pipeline wholePipeline();

/// The same passes, each with all options of its pass, which have the values that they have there when it
/// begins with `options`.
Pipeline withAllOptions(const Pipeline& pipeline, PassOptions options);

void runPipeline(Program& program, PassContext& context, const Pipeline& pipeline,
                 const PipelineOptions& options = {});

}  // namespace gravure
