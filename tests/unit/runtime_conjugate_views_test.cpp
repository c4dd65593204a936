// Views that are conjugated or negated when they are read (rotary embeddings make them) are captured as
// other views are, and keep their bits (law 1).
#include "tests/unit/runtime_fixture.h"

using namespace gravure;

namespace {

const char* const kConjugated = R"(gravure 1
graph step(%x : ComplexFloat(3, 4, strides=[4, 1], device=cpu) {user_input "x"}):
  %xs : ComplexFloat(3, 4, strides=[4, 1], device=cpu) = cudagraph::stage(%x)
  %y.out : ComplexFloat(3, 4, strides=[4, 1], device=cpu), %v.out : ComplexFloat(3, 4, strides=[4, 1], device=cpu) = cudagraph::launch[index=0, tags=["staged: user input"]](%xs)
    block0(%xs.0 : ComplexFloat(3, 4, strides=[4, 1], device=cpu)):
      %c : ComplexFloat(3, 4, strides=[4, 1], device=cpu) = aten::mul.Tensor(%xs.0, %xs.0)
      %v : ComplexFloat(3, 4, strides=[4, 1], device=cpu) = aten::_conj(%c)
      %y : ComplexFloat(3, 4, strides=[4, 1], device=cpu) = aten::mul.Tensor(%v, %xs.0)
      -> (%y, %v)
  %y.own : ComplexFloat(3, 4, strides=[4, 1], device=cpu), %v.own : ComplexFloat(3, 4, strides=[4, 1], device=cpu) = cudagraph::own(%y.out, %v.out)
  return (%y.own {output "y"}, %v.own {output "v"})
)";

const char* const kNegated = R"(gravure 1
graph step(%x : Float(3, 4, strides=[4, 1], device=cpu) {user_input "x"}):
  %xs : Float(3, 4, strides=[4, 1], device=cpu) = cudagraph::stage(%x)
  %y.out : Float(3, 4, strides=[4, 1], device=cpu), %v.out : Float(3, 4, strides=[4, 1], device=cpu) = cudagraph::launch[index=0, tags=["staged: user input"]](%xs)
    block0(%xs.0 : Float(3, 4, strides=[4, 1], device=cpu)):
      %c : Float(3, 4, strides=[4, 1], device=cpu) = aten::mul.Tensor(%xs.0, %xs.0)
      %v : Float(3, 4, strides=[4, 1], device=cpu) = aten::_neg_view(%c)
      %y : Float(3, 4, strides=[4, 1], device=cpu) = aten::mul.Tensor(%v, %xs.0)
      -> (%y, %v)
  %y.own : Float(3, 4, strides=[4, 1], device=cpu), %v.own : Float(3, 4, strides=[4, 1], device=cpu) = cudagraph::own(%y.out, %v.out)
  return (%y.own {output "y"}, %v.own {output "v"})
)";

/// Contents, whatever bits say how to read them.
at::Tensor read(const c10::IValue& value) { return value.toTensor().resolve_conj().resolve_neg(); }

}  // namespace

TEST_CASE("a partition with a conjugated or a negated view is captured and keeps its bits",
          "[law1]") {
  for (const char* text : {kConjugated, kNegated}) {
    INFO(text);
    const auto dtype = text == kConjugated ? at::kComplexFloat : at::kFloat;
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
