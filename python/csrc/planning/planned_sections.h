#pragma once
// How the passes would cut a program, before anything is rewritten: for who compiles regions of it.

#include <ATen/core/Dict.h>

#include <cstdint>
#include <string>
#include <vector>

namespace gravure {

/// By entry, its sections in planned order. A section is [kind, statement, ...]: the index of its partition,
/// kHostSection, or kNumberSection; then its statements in planned order, each by its position in the text.
/// Behind them one list more, kDraws: the statements that draw random numbers.
using PlannedSections = c10::Dict<std::string, std::vector<std::vector<int64_t>>>;
constexpr int64_t kHostSection = -1;
constexpr int64_t kNumberSection = -2;  // on the host, number nodes alone
constexpr int64_t kDraws = -3;

/// `options` as for LoadedProgram. TORCH_CHECK with line and column for a text that is no program.
PlannedSections plannedSections(const std::string& text,
                                const c10::Dict<std::string, std::string>& options);

}  // namespace gravure
