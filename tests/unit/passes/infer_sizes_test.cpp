#include "passes/infer_sizes.h"

#include "ir/core/tensor_type.h"
#include "ir/text/program_text.h"
#include "passes/analysis/linear_sum.h"
#include "tests/catch.h"
#include "tests/unit/pass_fixture.h"

#include <filesystem>
#include <random>

namespace gravure {
namespace {

LinearSum randomSum(std::mt19937& random) {
  LinearSum sum(static_cast<int64_t>(random() % 7) - 3);
  for (int terms = 0; terms < 3; ++terms) {
    const auto unknown = static_cast<int32_t>(random() % 4);
    sum = sum.plus(LinearSum::ofUnknown(unknown), static_cast<int64_t>(random() % 5) - 2);
  }
  return sum;
}

int64_t valueOf(const LinearSum& sum, const std::vector<int64_t>& unknowns) {
  int64_t value = sum.constant();
  for (const auto& [unknown, factor] : sum.terms()) value += factor * unknowns[unknown];
  return value;
}

/// Opens every size of what the nodes compute, and tells what they were.
std::vector<std::pair<Value*, c10::TensorTypePtr>> openSizes(Program& program) {
  std::vector<std::pair<Value*, c10::TensorTypePtr>> were;
  for (Entry& entry : program.entries) {
    for (Node* node : entry.graph->nodes()) {
      for (Value* output : node->outputs()) {
        const auto type = output->type()->cast<c10::TensorType>();
        if (!type || !type->dim() || !type->sizes().concrete_sizes()) continue;
        were.emplace_back(output, type);
        output->setType(withSizes(*type, Dims(*type->dim())));
      }
    }
  }
  return were;
}

}  // namespace

TEST_CASE("a sum of unknowns is worth what its parts are, and equal sums are equal") {
  std::mt19937 random(0);
  for (int i = 0; i < 2000; ++i) {
    const LinearSum a = randomSum(random), b = randomSum(random);
    const auto factor = static_cast<int64_t>(random() % 7) - 3;
    std::vector<int64_t> unknowns;
    for (int u = 0; u < 4; ++u) unknowns.push_back(static_cast<int64_t>(random() % 100) - 50);
    CHECK(valueOf(a.plus(b, factor), unknowns) ==
          valueOf(a, unknowns) + factor * valueOf(b, unknowns));
    CHECK(a.plus(b) == b.plus(a));
    CHECK(a.minus(a) == LinearSum(0));
  }
}

TEST_CASE("sizes that are inferred from the inputs' alone are those that tracing found") {
  size_t all = 0, inferred = 0;
  for (const auto& file : std::filesystem::recursive_directory_iterator("tests/programs")) {
    if (file.path().extension() != ".gv") continue;
    CAPTURE(file.path().string());
    Program program = readProgramFile(file.path().string());
    const auto were = openSizes(program);
    PassContext context;
    inferSizes(program, context);
    for (const auto& [value, type] : were) {
      const auto now = value->type()->cast<c10::TensorType>();
      CAPTURE(value->debugName());
      for (size_t d = 0; d < *type->dim(); ++d) {
        ++all;
        if (!now->sizes()[d]) continue;
        ++inferred;
        CHECK(*now->sizes()[d] == *type->sizes()[d]);
      }
    }
  }
  // The rest are results of operators without a rule, and of what works on them.
  CAPTURE(inferred, all);
  CHECK(inferred * 2 > all);
}

}  // namespace gravure
