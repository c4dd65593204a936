#pragma once
// gravure run: runs a program step by step, and compares with the uncaptured one.

#include "tools/gravure/command/command.h"

#include <memory>

namespace gravure::tool {

std::unique_ptr<Command> makeRunCommand();

}  // namespace gravure::tool
