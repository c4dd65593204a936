#include "tools/gravure/plan.h"

#include "tools/gravure/load.h"
#include "tools/gravure/pass_flags.h"
#include "tools/gravure/plan_print.h"
#include "tools/gravure/remark_output.h"

#include <llvm/Support/raw_ostream.h>

namespace gravure::tool {
namespace {

namespace cl = llvm::cl;

class PlanCommand final : public Command {
 public:
  PlanCommand() : Command("plan", "show how a program is cut and where its memory lies") {}

  int run() override {
    if (path_.empty()) throw UsageError("plan: expected a program text or an exported folder");
    remarkOutput_.check();
    PassContext context{flags_.options(), {}};
    LoadedProgram loaded = loadProgram(path_, false);
    PlanReport report;
    try {
      report = reportPlan(loaded.program, context, loaded.file);
    } catch (const c10::Error& error) {
      throw FileError(loaded.file, messageOf(error));
    }
    json_ ? printPlanJson(report, llvm::outs()) : printPlan(report, map_, llvm::outs());
    llvm::outs().flush();
    remarkOutput_.write(context.remarks);
    return kOk;
  }

 private:
  cl::opt<std::string> path_{cl::Positional, cl::desc("PATH"), cl::sub(sub()), cl::cat(category())};
  cl::opt<bool> json_{"json", cl::desc("print the plan as JSON"), cl::sub(sub()),
                      cl::cat(category())};
  cl::opt<bool> map_{"map", cl::init(true),
                     cl::desc("draw the arena over time (default; --map=false leaves it out)"),
                     cl::sub(sub()), cl::cat(category())};
  PassFlags flags_{*this};
  RemarkOutput remarkOutput_{*this};
};

}  // namespace

std::unique_ptr<Command> makePlanCommand() { return std::make_unique<PlanCommand>(); }

}  // namespace gravure::tool
