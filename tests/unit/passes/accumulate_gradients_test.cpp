// What the verifier of accumulate-gradients refuses; the goldens show the pass.
#include "passes/accumulate_gradients.h"
#include "tests/catch.h"
#include "tests/unit/pass_fixture.h"

namespace gravure {

TEST_CASE("accumulate-gradients: a gradient that is added is not returned as well") {
  Program program = readProgram(
      test::expandTypes("graph step(%w : R {parameter \"w\"}, %b : R {buffer \"w.grad\"}):\n"
                        "  %g : R = aten::relu(%w)\n  %s : R = aten::add_.Tensor(%b, %g)\n"
                        "  return (%g {gradient \"w\"})"));
  PassContext context;
  context.options.accumulateGradients = true;
  CHECK_THROWS_WITH(verifyAccumulateGradients(program, context),
                    Catch::Contains("\"w.grad\" of step is added to, and its gradient returned"));
  program.entries[0].graph->eraseOutput(0);
  program.entries[0].outputs.clear();
  verifyAccumulateGradients(program, context);
}

}  // namespace gravure
