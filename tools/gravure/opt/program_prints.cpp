#include "tools/gravure/opt/program_prints.h"

#include "ir/core/nearest_name.h"
#include "ir/text/program_text.h"

#include <llvm/ADT/STLExtras.h>
#include <llvm/Support/raw_ostream.h>

namespace gravure::tool {

namespace cl = llvm::cl;

namespace {

/// As --split-input reads it.
constexpr const char* kSeparator = "# -----\n";

}  // namespace

ProgramPrints::ProgramPrints(Command& command)
    : afterAll_("print-after-all", cl::desc("print the program after each pass"),
                cl::sub(command.sub()), cl::cat(command.category())),
      before_("print-before", cl::value_desc("PASS,PASS"), cl::CommaSeparated,
              cl::desc("print the program before these passes"), cl::sub(command.sub()),
              cl::cat(command.category())),
      after_("print-after", cl::value_desc("PASS,PASS"), cl::CommaSeparated,
             cl::desc("print the program after these passes"), cl::sub(command.sub()),
             cl::cat(command.category())),
      changed_("print-changed",
               cl::desc("print the program as given, and after each pass that changes it"),
               cl::sub(command.sub()), cl::cat(command.category())) {}

void ProgramPrints::check(const Pipeline& pipeline) const {
  std::vector<std::string> names;
  for (const ListedPass& listed : pipeline) names.emplace_back(listed.pass->name);
  const auto need = [&](const char* flag, const cl::list<std::string>& wanted) {
    for (const std::string& name : wanted) {
      if (llvm::is_contained(names, name)) continue;
      throw UsageError(std::string(flag) + ": no pass '" + name + "' runs" +
                       didYouMean(name, names) + " (gravure opt --list-passes)");
    }
  };
  need("--print-before", before_);
  need("--print-after", after_);
}

void ProgramPrints::begin(const Program& given) {
  isLatest_ = false;
  if (!changed_) return;
  latestText_ = programText(given);
  print(given, "as given");
}

void ProgramPrints::before(const Pass& pass, const Program& program) {
  if (llvm::is_contained(before_, pass.name)) print(program, std::string("before ") + pass.name);
}

void ProgramPrints::after(const Pass& pass, const Program& program) {
  isLatest_ = false;
  bool wanted = afterAll_ || llvm::is_contained(after_, pass.name);
  if (changed_) {
    std::string text = programText(program);
    wanted |= text != latestText_;
    isLatest_ = text == latestText_;
    latestText_ = std::move(text);
  }
  if (wanted) print(program, std::string("after ") + pass.name);
}

void ProgramPrints::end(const Program& result) {
  if (!isLatest_) print(result, "");
}

void ProgramPrints::print(const Program& program, const std::string& title) {
  llvm::raw_ostream& os = llvm::outs();
  if (printed_) os << kSeparator;
  if (!title.empty()) os << "# " << title << '\n';
  printProgram(program, os);
  printed_ = isLatest_ = true;
}

}  // namespace gravure::tool
