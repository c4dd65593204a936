#include "tools/gravure/load.h"

#include "ir/program_text.h"
#include "ir/verify.h"
#include "tools/gravure/command.h"

#include <llvm/Support/FileSystem.h>
#include <llvm/Support/Path.h>
#include <torch/csrc/jit/serialization/pickle.h>

namespace gravure::tool {
namespace {

SavedInputs readInputs(const std::string& file) {
  const std::string bytes = readText(file);
  c10::IValue read;
  try {
    read = torch::jit::pickle_load({bytes.begin(), bytes.end()});
  } catch (const std::exception&) {
    // What libtorch says of a damaged archive holds the archive's bytes.
    throw FileError(file, "cut short, damaged, or not written by gravure.export_step");
  }
  SavedInputs inputs;
  const char* expected = "expected {entry: {input: value}}";
  if (!read.isGenericDict()) throw FileError(file, expected);
  for (const auto& entry : read.toGenericDict()) {
    if (!entry.key().isString() || !entry.value().isGenericDict()) {
      throw FileError(file, expected);
    }
    auto& values = inputs[entry.key().toStringRef()];
    for (const auto& input : entry.value().toGenericDict()) {
      if (!input.key().isString()) throw FileError(file, expected);
      values[input.key().toStringRef()] = input.value();
    }
  }
  return inputs;
}

}  // namespace

LoadedProgram loadProgram(const std::string& path, bool withInputs) {
  LoadedProgram loaded;
  const bool folder = llvm::sys::fs::is_directory(path);
  loaded.file = folder ? path + "/program.gv" : path;
  const std::string text = readText(loaded.file);
  if (path == "-") loaded.file = "<stdin>";
  loaded.program = readProgram(text, loaded.file);
  try {
    verifyProgram(loaded.program);
  } catch (const c10::Error& error) {
    throw FileError(loaded.file, messageOf(error));
  }
  if (!withInputs || path == "-") return loaded;
  llvm::SmallString<128> inputs(loaded.file);
  llvm::sys::path::remove_filename(inputs);
  llvm::sys::path::append(inputs, "inputs.pt");
  if (folder || llvm::sys::fs::exists(inputs)) loaded.inputs = readInputs(inputs.str().str());
  return loaded;
}

}  // namespace gravure::tool
