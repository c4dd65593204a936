#pragma once
// Whether two programs are one.

#include "ir/core/program.h"

#include <string>

namespace gravure {

/// Equal in structure: entries, roles, nodes, arguments, attributes, types, value names (anonymous
/// ones by position). Compares both ways; on a difference `*why` names the first.
bool equalPrograms(const Program& a, const Program& b, std::string* why = nullptr);

}  // namespace gravure
