// Views that are conjugated or negated when they are read (rotary embeddings make them) are captured as
// other views are, and keep their bits (law 1).
#include "tests/unit/runtime_fixture.h"

#include <regex>

using namespace gravure;

namespace {

/// A partition that reads `view` of what it computed, and returns it as well.
std::string textOf(const std::string& dtype, const std::string& view) {
  const std::string text = R"(gravure 1
graph step(%x : TYPE {user_input "x"}):
  %xs : TYPE = cudagraph::stage(%x)
  %y.out : TYPE, %v.out : TYPE = cudagraph::launch[index=0, tags=["staged: user input"]](%xs)
    block0(%xs.0 : TYPE):
      %c : TYPE = aten::mul.Tensor(%xs.0, %xs.0)
      %v : TYPE = VIEW(%c)
      %y : TYPE = aten::mul.Tensor(%v, %xs.0)
      -> (%y, %v)
  %y.own : TYPE, %v.own : TYPE = cudagraph::own(%y.out, %v.out)
  return (%y.own {output "y"}, %v.own {output "v"})
)";
  const std::string type = dtype + "(3, 4, strides=[4, 1], device=cpu)";
  return std::regex_replace(std::regex_replace(text, std::regex("TYPE"), type), std::regex("VIEW"),
                            view);
}

/// Contents, whatever bits say how to read them.
at::Tensor read(const c10::IValue& value) { return value.toTensor().resolve_conj().resolve_neg(); }

}  // namespace

TEST_CASE("a partition with a conjugated or a negated view is captured and keeps its bits",
          "[law1]") {
  for (const auto dtype : {at::kComplexFloat, at::kFloat}) {
    const bool complex = dtype == at::kComplexFloat;
    const std::string text =
        textOf(complex ? "ComplexFloat" : "Float", complex ? "aten::_conj" : "aten::_neg_view");
    INFO(text);
    auto runtime = makeRuntime(text);
    auto reference = makeReference(text);
    for (int step = 0; step < 8; ++step) {
      CAPTURE(step);
      const at::Tensor x = at::randn({3, 4}, at::TensorOptions(dtype));
      const auto found = runtime->run("step", {x}), expected = reference->run("step", {x});
      for (size_t i = 0; i < expected.size(); ++i)
        CHECK(sameBits(read(found[i]), read(expected[i])));
    }
    INFO(remarksOf(*runtime));
    CHECK(countIn(*runtime, PartitionState::Captured) == 1);
    CHECK(runtime->stats().replays > 3);
  }
}
