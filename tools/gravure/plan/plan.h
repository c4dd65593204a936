#pragma once
// gravure plan: shows how a program will be cut, without running it.

#include "tools/gravure/command/command.h"

#include <memory>

namespace gravure::tool {

std::unique_ptr<Command> makePlanCommand();

}  // namespace gravure::tool
