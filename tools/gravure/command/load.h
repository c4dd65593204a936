#pragma once
// What a PATH on the command line names: a program text, or a folder as the Python export leaves it.

#include "tools/gravure/proof/drawn_inputs.h"

#include <optional>
#include <string>

namespace gravure::tool {

struct ProgramFile {
  Program program;
  std::string file;                   // program text, for messages
  std::optional<SavedInputs> inputs;  // nullopt where there is no inputs.pt
};

/// Reads and verifies PATH: a program text (with inputs.pt beside it if there is one), `-`, or a
/// folder that holds program.gv and inputs.pt. UsageError if a file is missing or cannot be read;
/// TextError, FileError and c10::Error (with the file's name) if what it holds is wrong.
ProgramFile loadProgram(const std::string& path, bool withInputs);

/// The values of inputs.pt in the folder of `file`; nullopt if there is none.
std::optional<SavedInputs> inputsBeside(const std::string& file);

}  // namespace gravure::tool
