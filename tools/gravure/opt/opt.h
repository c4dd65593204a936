#pragma once
// gravure opt: runs passes on a program text and prints the result.

#include "tools/gravure/command/command.h"

#include <memory>

namespace gravure::tool {

std::unique_ptr<Command> makeOptCommand();

}  // namespace gravure::tool
