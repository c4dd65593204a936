#include "python/csrc/planning/planning.h"

#include "ir/check/verify.h"
#include "ir/core/location.h"
#include "ir/text/program_text.h"
#include "passes/classify_capturability.h"
#include "passes/report/plan_report.h"
#include "passes/report/step_detail.h"
#include "python/csrc/planning/load_options.h"

#include <llvm/Support/raw_ostream.h>

#include <algorithm>
#include <set>
#include <tuple>

namespace gravure {

std::string explainProgram(const std::string& text, const std::string& device,
                           const c10::Dict<std::string, std::string>& options) {
  Program program = readProgram(text);
  verifyProgram(program);
  PassContext context;
  context.options = parseLoadOptions(options).passes;
  if (device == "host") context.options.alignment = makeHostDevice(false)->alignment();
  const PlanReport report = reportPlan(program, context, "");
  std::string json;
  llvm::raw_string_ostream os(json);
  os << "{\"plan\": ";
  printPlanJson(report, os);
  os << ", \"remarks\": ";
  context.remarks.printJson(os);
  os << ", \"detail\": ";
  printStepDetail(program, context.options, nullptr, os);
  os << "}";
  return json;
}

namespace {

/// What a remark says of the node that it is about.
using NodeText = std::tuple<std::string, std::string, std::string>;

/// The nodes that the user named, whatever else keeps them out of graphs.
void collectRequested(const Block* block, const std::vector<std::string>& requests,
                      std::set<NodeText>& found) {
  for (const Node* node : block->nodes()) {
    const bool named = std::any_of(requests.begin(), requests.end(), [&](const std::string& text) {
      return isRequested(node, text);
    });
    if (named) found.emplace(describe(node), sourceOf(node), moduleOf(node));
    for (const Block* inner : node->blocks()) collectRequested(inner, requests, found);
  }
}

}  // namespace

void requireAllCaptured(const Program& program, const PassContext& context) {
  std::set<NodeText> requested;
  for (const Entry& entry : program.entries) {
    collectRequested(entry.graph->block(), context.options.hostRequests, requested);
  }
  constexpr int64_t kShown = 8;
  int64_t missed = 0;
  std::string lines;
  llvm::raw_string_ostream os(lines);
  for (const Remark& remark : context.remarks.all()) {
    const auto reason = reasonFromName(remark.name);
    if (remark.kind != RemarkKind::Missed || !reason) continue;
    if (requested.count({remark.node, remark.source, remark.module}) > 0) continue;
    if (++missed > kShown) continue;
    os << '\n';
    remark.print(os);
    os << "  cure: " << reasonCure(*reason);
  }
  if (missed > kShown) os << "\nand " << missed - kShown << " more";
  TORCH_CHECK(missed == 0, "require_capture: ", missed, missed == 1 ? " node" : " nodes",
              " would run outside of graphs; cure each, or name it in the option host:", lines);
}

}  // namespace gravure
