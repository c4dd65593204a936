#include "ir/text/program_text.h"
#include "passes/pipeline/pipeline.h"
#include "tests/catch.h"
#include "tests/property/proof_programs.h"

#include <cstdlib>
#include <string>
#include <vector>

namespace gravure {
namespace {

using testing::ProofProgram;
using testing::Random;

/// Passes of `pipeline`, each left out by chance.
Pipeline someOf(const Pipeline& pipeline, Random& random) {
  const size_t share = random.chance(50) ? 100 : 40 + random.below(60);
  Pipeline some;
  for (const ListedPass& listed : pipeline) {
    if (random.chance(share)) some.push_back(listed);
  }
  return some;
}

/// What the passes make of a copy of `given`; "" where they refuse it.
template <typename Run>
std::string resultOf(const Program& given, const PassOptions& options, Run&& run) {
  Program program = given.clone();
  PassContext context;
  context.options = options;
  try {
    run(program, context);
  } catch (const c10::Error& error) {
    const std::string why = error.what_without_backtrace();
    if (why.find("INTERNAL ASSERT") != std::string::npos) FAIL(why);
    return "";
  }
  std::string text = programText(program);
  for (const Remark& remark : context.remarks.all())
    text += remark.name + ": " + remark.message + "\n";
  return text;
}

}  // namespace

TEST_CASE("what passes keep of their analyses is what each would have found by itself") {
  int done = 0, refused = 0;
  for (uint64_t number = 0; number < 400; ++number) {
    Random random(number * 31 + 7);
    const std::string text = ProofProgram(number).text();
    const Program given = readProgram(text);
    const Pipeline pipeline = someOf(wholePipeline(), random);
    PassOptions options;
    options.minPartitionSize = 1 + static_cast<int64_t>(random.below(3));
    options.accumulateGradients = random.chance(40);
    INFO(pipelineText(pipeline) << "\n" << text);
    const std::string kept = resultOf(given, options, [&](Program& program, PassContext& context) {
      PipelineOptions checked;
      checked.verifyFacts = true;
      runPipeline(program, context, pipeline, checked);
    });
    if (kept.empty()) {
      ++refused;
      continue;
    }
    ++done;
    CHECK(kept == resultOf(given, options, [&](Program& program, PassContext& context) {
            for (const ListedPass& listed : pipeline) listed.pass->run(program, context);
          }));
  }
  CHECK(done > 200);
  CHECK(refused < 200);
}

}  // namespace gravure
