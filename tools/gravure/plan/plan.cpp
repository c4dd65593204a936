#include "tools/gravure/plan/plan.h"

#include "passes/report/step_detail.h"
#include "tools/gravure/command/load.h"
#include "tools/gravure/command/pass_flags.h"
#include "tools/gravure/command/remark_output.h"
#include "tools/gravure/plan/plan_print.h"

#include <llvm/Support/raw_ostream.h>

namespace gravure::tool {
namespace {

namespace cl = llvm::cl;

class PlanCommand final : public Command {
 public:
  PlanCommand() : Command("plan", "show how a program is cut and where its memory lies") {}

  int run() override {
    if (path_.empty()) throw UsageError("plan: expected a program text or an exported folder");
    if (html_.getNumOccurrences() > 0) {
      throw UsageError("plan: --html: Python draws the page; use the command `gravure` that pip "
                       "installs, or python -m gravure_native plan PATH --html FILE");
    }
    remarkOutput_.check();
    PassContext context{flags_.options(), {}};
    ProgramFile loaded = loadProgram(path_, false);
    PlanReport report;
    try {
      report = reportPlan(loaded.program, context, loaded.file);
    } catch (const c10::Error& error) {
      throw FileError(loaded.file, messageOf(error));
    }
    if (detail_) {
      printAll(report, loaded.program, context);
    } else {
      json_ ? printPlanJson(report, llvm::outs()) : printPlan(report, map_, llvm::outs());
    }
    llvm::outs().flush();
    remarkOutput_.write(context.remarks);
    return kOk;
  }

 private:
  static void printAll(const PlanReport& report, const Program& program,
                       const PassContext& context) {
    llvm::outs() << "{\"plan\": ";
    printPlanJson(report, llvm::outs());
    llvm::outs() << ", \"remarks\": ";
    context.remarks.printJson(llvm::outs());
    llvm::outs() << ", \"detail\": ";
    printStepDetail(program, context.options, nullptr, llvm::outs());
    llvm::outs() << "}\n";
  }

  cl::opt<std::string> path_{cl::Positional, cl::desc("PATH"), cl::sub(sub()), cl::cat(category())};
  cl::opt<bool> json_{"json", cl::desc("print the plan as JSON"), cl::sub(sub()),
                      cl::cat(category())};
  cl::opt<bool> detail_{
      "detail", cl::desc("print plan, remarks, every call and every buffer as one JSON object"),
      cl::sub(sub()), cl::cat(category())};
  cl::opt<std::string> html_{
      "html", cl::value_desc("file"),
      cl::desc("write a page to look at; drawn by Python, for the command that pip installs"),
      cl::sub(sub()), cl::cat(category())};
  cl::opt<bool> map_{"map", cl::init(true),
                     cl::desc("draw the arena over time (default; --map=false leaves it out)"),
                     cl::sub(sub()), cl::cat(category())};
  PassFlags flags_{*this};
  RemarkOutput remarkOutput_{*this};
};

}  // namespace

std::unique_ptr<Command> makePlanCommand() { return std::make_unique<PlanCommand>(); }

}  // namespace gravure::tool
