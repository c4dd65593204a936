#pragma once
// gravure bench: measures.

#include "tools/gravure/command/command.h"

#include <memory>

namespace gravure::tool {

std::unique_ptr<Command> makeBenchCommand();

}  // namespace gravure::tool
