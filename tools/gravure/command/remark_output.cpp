#include "tools/gravure/command/remark_output.h"

#include <llvm/Support/FileSystem.h>
#include <llvm/Support/raw_ostream.h>

namespace gravure::tool {

namespace cl = llvm::cl;

RemarkOutput::RemarkOutput(Command& command)
    : format_("remarks", cl::value_desc("none|text|json"), cl::init("none"),
              cl::desc("print what was done, missed and found to standard error (default none)"),
              cl::sub(command.sub()), cl::cat(command.category())),
      file_("remarks-file", cl::value_desc("FILE"),
            cl::desc("write remarks to FILE instead (as JSON unless --remarks=text)"),
            cl::sub(command.sub()), cl::cat(command.category())) {}

void RemarkOutput::check() const {
  checkOneOf("--remarks", format_.getValue(), {"none", "text", "json"});
  if (file_.getNumOccurrences() && file_.empty())
    throw UsageError("--remarks-file: expected a file");
}

void RemarkOutput::write(const Remarks& remarks) const {
  const bool toFile = !file_.empty();
  const std::string format = toFile && !format_.getNumOccurrences() ? "json" : format_.getValue();
  if (format == "none") return;
  auto print = [&](llvm::raw_ostream& os) {
    format == "json" ? remarks.printJson(os) : remarks.printText(os);
  };
  if (!toFile) return print(llvm::errs());
  std::error_code error;
  llvm::raw_fd_ostream os(file_, error, llvm::sys::fs::OF_Text);
  if (!error) {
    print(os);
    os.close();
    error = os.error();
    os.clear_error();
  }
  if (error) throw UsageError("cannot write '" + file_ + "': " + error.message());
}

void appendRemarks(Remarks& to, const Remarks& from) {
  for (const Remark& remark : from.all()) {
    to.add(remark.kind, remark.pass, remark.name, remark.message) = remark;
  }
}

}  // namespace gravure::tool
