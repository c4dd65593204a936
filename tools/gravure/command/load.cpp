#include "tools/gravure/command/load.h"

#include "ir/check/verify.h"
#include "ir/text/program_text.h"
#include "runtime/program/inputs_file.h"
#include "tools/gravure/command/command.h"

#include <llvm/Support/FileSystem.h>
#include <llvm/Support/Path.h>

namespace gravure::tool {

ProgramFile loadProgram(const std::string& path, bool withInputs) {
  ProgramFile loaded;
  const bool folder = llvm::sys::fs::is_directory(path);
  loaded.file = folder ? path + "/program.gv" : path;
  if (folder && !llvm::sys::fs::exists(loaded.file)) {
    throw UsageError("the folder '" + path +
                     "' holds no program.gv; name a program text, or a folder that "
                     "gravure.export_step or export_joint wrote");
  }
  const std::string text = readText(loaded.file);
  if (path == "-") loaded.file = "<stdin>";
  loaded.program = readProgram(text, loaded.file);
  try {
    verifyProgram(loaded.program);
  } catch (const c10::Error& error) {
    throw FileError(loaded.file, messageOf(error));
  }
  if (!withInputs || path == "-") return loaded;
  loaded.inputs = inputsBeside(loaded.file);
  if (folder && !loaded.inputs) loaded.inputs = InputsFile::read(path + "/inputs.pt").entries();
  return loaded;
}

std::optional<SavedInputs> inputsBeside(const std::string& file) {
  llvm::SmallString<128> inputs(file);
  llvm::sys::path::remove_filename(inputs);
  llvm::sys::path::append(inputs, "inputs.pt");
  if (!llvm::sys::fs::exists(inputs)) return std::nullopt;
  return InputsFile::read(inputs.str().str()).entries();
}

}  // namespace gravure::tool
