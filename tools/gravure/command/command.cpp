#include "tools/gravure/command/command.h"

#include "ir/core/nearest_name.h"

#include <c10/util/Exception.h>
#include <llvm/ADT/StringExtras.h>
#include <llvm/Support/FileSystem.h>
#include <llvm/Support/MemoryBuffer.h>
#include <llvm/Support/Path.h>

#include <algorithm>

namespace gravure::tool {

void checkOneOf(llvm::StringRef flag, llvm::StringRef value, llvm::ArrayRef<std::string> known) {
  if (llvm::is_contained(known, value)) return;
  throw UsageError((flag + ": '" + value + "' is not one of " + llvm::join(known, ", ")).str() +
                   didYouMean(value, known));
}

void checkWithin(llvm::StringRef flag, int64_t value, int64_t least, int64_t most) {
  if (value >= least && value <= most) return;
  std::string expected = "at least " + std::to_string(least);
  if (value > most) expected = "at most " + std::to_string(most);
  throw UsageError(flag.str() + ": expected " + expected + ", found " + std::to_string(value));
}

namespace {

/// Names of the files beside `path`, with its folder in front as `path` has it.
std::vector<std::string> filesBeside(const std::string& path) {
  const std::string folder = llvm::sys::path::parent_path(path).str();
  std::vector<std::string> files;
  std::error_code error;
  for (llvm::sys::fs::directory_iterator at(folder.empty() ? "." : folder, error), end;
       !error && at != end; at.increment(error)) {
    const std::string name = llvm::sys::path::filename(at->path()).str();
    const std::string file = folder.empty() ? name : folder + "/" + name;
    if (file != path) files.push_back(file);  // a link that leads nowhere is there all the same
  }
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

std::string readText(const std::string& path) {
  if (path != "-" && llvm::sys::fs::is_directory(path)) {
    throw UsageError("'" + path + "' is a folder; expected a program text");
  }
  auto buffer = llvm::MemoryBuffer::getFileOrSTDIN(path, false, false);
  if (!buffer) {
    throw UsageError("cannot read '" + path + "': " + buffer.getError().message() +
                     didYouMean(path, filesBeside(path)));
  }
  return (*buffer)->getBuffer().str();
}

std::string messageOf(const std::exception& error) {
  const auto* ours = dynamic_cast<const c10::Error*>(&error);
  const llvm::StringRef message(ours ? ours->what_without_backtrace() : error.what());
  return message.trim().split('\n').first.rtrim().str();
}

}  // namespace gravure::tool
