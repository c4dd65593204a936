#pragma once
// What a PATH on the command line names: a program text, or a folder as the Python export leaves it.

#include "ir/program.h"

#include <ATen/core/ivalue.h>

#include <map>
#include <optional>
#include <string>

namespace gravure::tool {

/// Values by entry and by the name of the input's role, as inputs.pt holds them.
using SavedInputs = std::map<std::string, std::map<std::string, c10::IValue>>;

struct LoadedProgram {
  Program program;
  std::string file;                   // program text, for messages
  std::optional<SavedInputs> inputs;  // nullopt where there is no inputs.pt
};

/// Reads and verifies PATH: a program text (with inputs.pt beside it if there is one), `-`, or a
/// folder that holds program.gv and inputs.pt. UsageError if a file is missing or cannot be read;
/// TextError, FileError and c10::Error (with the file's name) if what it holds is wrong.
LoadedProgram loadProgram(const std::string& path, bool withInputs);

}  // namespace gravure::tool
