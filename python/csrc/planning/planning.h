#pragma once
// What the passes decide, told before anything runs.

#include "ir/core/program.h"
#include "passes/pass.h"

#include <ATen/core/Dict.h>

#include <string>

namespace gravure {

/// How the program `text` will be cut on `device` ("host", "cuda", "cuda:N"; it need not exist), as
/// one JSON object: "plan" (passes/report/plan_report.h), "remarks" (ir/core/remark.h) and "detail"
/// (passes/report/step_detail.h). TORCH_CHECK as when it is loaded.
std::string explainProgram(const std::string& text, const std::string& device,
                           const c10::Dict<std::string, std::string>& options);

/// TORCH_CHECK that the passes kept no node of `program` out of graphs but those that the user named;
/// else it names node, reason, source line and cure of each.
void requireAllCaptured(const Program& program, const PassContext& context);

}  // namespace gravure
