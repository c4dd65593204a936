// Every pass alone, and any sublist of them, on random programs that are run before and after: nothing
// the caller can see may change. What is seen is written in tools/gravure/proof/proof.h.
//
//   GRAVURE_SEED=N     starts from program N; a failure prints the number of its program
//   GRAVURE_CASES=N    programs (300)
#include "ir/check/verify.h"
#include "ir/text/program_text.h"
#include "passes/pass.h"
#include "tests/catch.h"
#include "tests/property/damaged_passes.h"
#include "tests/property/proof_programs.h"
#include "tools/gravure/proof/proof.h"
#include "tools/gravure/proof/reduce_program.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <map>

using namespace gravure;
using testing::DamagedPass;
using testing::ProofProgram;
using testing::Random;

namespace {

uint64_t number(const char* variable, uint64_t otherwise) {
  const char* text = std::getenv(variable);
  return text ? std::strtoull(text, nullptr, 10) : otherwise;
}

using Names = std::vector<std::string>;

Names passNames() {
  Names names;
  for (const Pass& pass : allPasses()) names.emplace_back(pass.name);
  return names;
}

std::string joined(const Names& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ",") + name;
  return text;
}

PassContext contextOf(uint64_t seed) {
  Random random(seed * 31 + 7);
  PassContext context;
  context.options.alignment = 64;
  context.options.pieceAlignment = 64;  // a row of these programs
  context.options.order = random.chance(70) ? PartitionOrder::Levels : PartitionOrder::Program;
  context.options.minPartitionSize = 1 + static_cast<int64_t>(random.below(2));
  context.verify = false;
  static const Names requests{
      "_c10d_functional::all_gather_into_tensor", "_c10d_functional::all_reduce",
      "_c10d_functional::reduce_scatter_tensor", "_c10d_functional::wait_tensor", "aten::mm"};
  for (size_t i = random.chance(40) ? 1 + random.below(2) : 0; i-- > 0;)
    context.options.hostRequests.push_back(random.of(requests));
  context.options.accumulateGradients = random.chance(40);
  return context;
}

tool::ProofOptions optionsOf(uint64_t seed, const Names& names) {
  tool::ProofOptions options;
  options.seed = seed;
  options.attempts = 1;  // any values do
  // Where await-host-copies is left out, others move what it would have made safe to move; the runtime
  // refuses what classify-capturability would have kept out of partitions.
  const auto has = [&](const char* name) {
    return std::count(names.begin(), names.end(), name) > 0;
  };
  options.lateCopies = has("await-host-copies");
  if (!has("classify-capturability")) options.runtimeSteps = 0;
  return options;
}

/// How often passes said what, where all was well: a pass that finds nothing to do proves nothing.
std::map<std::string, int>& remarksSeen() {
  static std::map<std::string, int> seen;
  return seen;
}

/// Runs the passes, `damaged` in the place of the one that it damages, and compares after each. "" if
/// all is well, or if a pass refuses the program; else what differs.
std::string differenceAfter(tool::Proof& proof, const Program& given, const Names& names,
                            uint64_t seed, const DamagedPass* damaged = nullptr) {
  Program program = given.clone();
  PassContext context = contextOf(seed);
  for (const std::string& name : names) {
    const bool isDamaged = damaged && damaged->pass == name;
    try {
      isDamaged ? damaged->run(program, context) : findPass(name)->run(program, context);
    } catch (const c10::Error& error) {
      const std::string why = error.what_without_backtrace();
      if (why.find("INTERNAL ASSERT") == std::string::npos) return "";
      return name + ": " + why;
    }
    std::string why = proof.differenceOf(program);
    if (!why.empty()) return name + ": " + why;
  }
  for (const Remark& remark : context.remarks.all()) ++remarksSeen()[remark.name];
  return "";
}

/// "" or a report that says how to see the failure again.
std::string failureOf(const Program& given, const Names& names, uint64_t seed, uint64_t number,
                      const DamagedPass* damaged = nullptr) {
  const tool::ProofOptions options = optionsOf(seed, names);
  const auto differenceOf = [&](const Program& program) {
    tool::Proof proof(program, options);
    return differenceAfter(proof, program, names, seed, damaged);
  };
  if (differenceOf(given).empty()) return "";
  const Program small = tool::reduced(
      given.clone(), [&](const Program& smaller) { return !differenceOf(smaller).empty(); });
  const PassOptions used = contextOf(seed).options;
  return "program " + std::to_string(number) + " (GRAVURE_SEED=" + std::to_string(number) +
         " GRAVURE_CASES=1): " + differenceOf(small) +
         "\ngravure opt FILE --no-verify --check-bits --seed=" + std::to_string(seed) +
         " --alignment=64 --min-partition-size=" + std::to_string(used.minPartitionSize) +
         (used.hostRequests.empty() ? "" : " --host=" + joined(used.hostRequests)) +
         (used.order == PartitionOrder::Program ? " --order=program" : "") +
         (used.accumulateGradients ? " --accumulate-gradients" : "") +
         " --passes=" + joined(names) + "\n" + programText(small);
}

Names sublist(Random& random) {
  Names names;
  const size_t share = 30 + random.below(60);
  for (const std::string& name : passNames()) {
    if (random.chance(share)) names.push_back(name);
  }
  return names;
}

/// Lists of passes that program `number` is run through: all of them, some, and each alone in turn.
std::vector<Names> listsFor(uint64_t number) {
  Random random(number * 977 + 3);
  const Names all = passNames();
  std::vector<Names> lists{all, sublist(random), sublist(random)};
  for (size_t i = 0; i < 4; ++i) lists.push_back({all[(4 * number + i) % all.size()]});
  return lists;
}

/// True if the damage makes another program of this one.
bool damages(const Program& given, const DamagedPass& damaged, uint64_t seed) {
  Program real = given.clone();
  PassContext context = contextOf(seed);
  for (const std::string& name : passNames()) {
    if (name == damaged.pass) break;
    findPass(name)->run(real, context);
  }
  Program tampered = real.clone();
  findPass(damaged.pass)->run(real, context);
  try {
    damaged.run(tampered, context);
  } catch (const c10::Error&) {
    return false;
  }
  return programText(real) != programText(tampered);
}

struct OneThread {
  const int before = at::get_num_threads();
  OneThread() { at::set_num_threads(1); }
  ~OneThread() { at::set_num_threads(before); }
};

}  // namespace

TEST_CASE("no pass, and no list of passes, changes what a random program does", "[law1][law2]") {
  const OneThread one;
  const uint64_t first = number("GRAVURE_SEED", 1), count = number("GRAVURE_CASES", 300);
  for (uint64_t n = first; n < first + count; ++n) {
    INFO("GRAVURE_SEED=" << n << " GRAVURE_CASES=1");
    const Program given = readProgram(ProofProgram(n).text());
    REQUIRE_NOTHROW(verifyProgram(given));
    for (const Names& names : listsFor(n)) {
      const std::string failure = failureOf(given, names, n, n);
      std::cerr << failure;  // Catch2 would break its lines
      CHECK(failure.empty());
    }
  }
  if (count < 300) return;
  for (const char* done :
       {"gradients-accumulated", "sizes-inferred", "gradients-joined", "pointwise-batched",
        "products-placed", "copy-awaited", "collective-whole", "open-collective",
        "host-reads-merged", "partition-formed", "input-in-place", "rng-state-bound",
        "arena-planned"}) {
    INFO(done);
    CHECK(remarksSeen()[done] >= 5);
  }
}

TEST_CASE("the first rewrites alone change nothing either", "[law1]") {
  const OneThread one;
  const uint64_t first = number("GRAVURE_SEED", 1), count = number("GRAVURE_CASES", 300);
  uint64_t limited = 0;
  for (uint64_t n = first; n < first + count; ++n) {
    INFO("GRAVURE_SEED=" << n << " GRAVURE_CASES=1");
    const Program given = readProgram(ProofProgram(n).text());
    PipelineOptions pipeline;
    pipeline.verifyFacts = true;
    PassContext free = contextOf(n);
    Program whole = given.clone();
    try {
      runPasses(whole, free, {}, pipeline);
    } catch (const c10::Error& error) {
      const std::string why = error.what_without_backtrace();
      CHECK(why.find("INTERNAL ASSERT") == std::string::npos);
      continue;
    }
    PassContext context = contextOf(n);
    context.rewrites.set(Random(n * 131 + 5).below(free.rewrites.asked() + 1));
    Program program = given.clone();
    REQUIRE_NOTHROW(runPasses(program, context, {}, pipeline));
    limited += context.rewrites.asked() < free.rewrites.asked();
    CHECK(tool::Proof(given, optionsOf(n, passNames())).differenceOf(program) == "");
  }
  if (count >= 300) CHECK(limited > 100);
}

TEST_CASE("passes that are damaged are caught", "[law1]") {
  const OneThread one;
  const uint64_t programs = 300;  // as many as are drawn above by default
  for (const DamagedPass& damaged : testing::damagedPasses()) {
    INFO(damaged.name);
    uint64_t tried = 0;
    std::string why;
    for (uint64_t n = 1; n <= programs && why.empty(); ++n) {
      const Program given = readProgram(ProofProgram(n).text());
      if (!damages(given, damaged, n)) continue;
      ++tried;
      tool::Proof proof(given, optionsOf(n, passNames()));
      why = differenceAfter(proof, given, passNames(), n, &damaged);
      // It is the damage that is caught.
      if (!why.empty() && !differenceAfter(proof, given, passNames(), n).empty()) why = "";
      if (!why.empty()) std::cout << damaged.name << ": program " << n << ": " << why << "\n";
    }
    INFO(tried << " of " << programs << " programs were damaged");
    CHECK(!why.empty());
  }
}
