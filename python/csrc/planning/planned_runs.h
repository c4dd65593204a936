#pragma once
// How the passes would cut a program, before anything is rewritten: for who compiles regions of it.

#include <ATen/core/Dict.h>

#include <cstdint>
#include <string>
#include <vector>

namespace gravure {

/// By entry, its runs in planned order. A run is [kind, statement, ...]: the index of its partition,
/// kHostRun, or kNumberRun; then its statements in planned order, each by its position in the text.
/// Behind them one list more, kDraws: the statements that draw random numbers.
using PlannedRuns = c10::Dict<std::string, std::vector<std::vector<int64_t>>>;
constexpr int64_t kHostRun = -1;
constexpr int64_t kNumberRun = -2;  // on the host, number nodes alone
constexpr int64_t kDraws = -3;

/// `options` as for LoadedProgram. TORCH_CHECK with line and column for a text that is no program.
PlannedRuns plannedRuns(const std::string& text,
                        const c10::Dict<std::string, std::string>& options);

}  // namespace gravure
