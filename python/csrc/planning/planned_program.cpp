#include "python/csrc/planning/planned_program.h"

#include "passes/pipeline/reproducer_head.h"

#include <llvm/ADT/SmallString.h>
#include <llvm/Support/FileSystem.h>
#include <llvm/Support/raw_ostream.h>

namespace gravure {
namespace {

/// The path of a new file with `text` in it; "" if there can be none.
std::string writeTemporary(const std::string& text) {
  llvm::SmallString<128> path;
  int file = -1;
  if (llvm::sys::fs::createTemporaryFile("gravure-failure", "gv", file, path)) return "";
  llvm::raw_fd_ostream os(file, /*shouldClose=*/true);
  os << text;
  os.close();
  const bool written = !os.has_error();
  os.clear_error();
  return written ? std::string(path) : "";
}

std::string waySeenAgain(const ProgramSource& source, const PassOptions& options,
                         const std::string& failure) {
  if (!source.path.empty()) {
    const std::string passes = pipelineText(withAllOptions(wholePipeline(), options));
    return "gravure opt '" + source.path + "' --passes='" + passes + "'";
  }
  const std::string file =
      writeTemporary(reproducerHead(wholePipeline(), options, {}, failure) + source.text);
  return file.empty() ? "" : "gravure opt " + file;
}

}  // namespace

const std::vector<PartitionPlan>& planOrReproduce(Program& program, PassContext& context,
                                                  const ProgramSource& source) {
  const PassOptions options = context.options;
  try {
    return planProgram(program, context);
  } catch (c10::Error& error) {
    const std::string way = waySeenAgain(source, options, error.what_without_backtrace());
    if (!way.empty()) error.add_context("no program is made; to see it again: " + way);
    throw;
  }
}

}  // namespace gravure
