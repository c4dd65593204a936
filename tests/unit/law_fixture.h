#pragma once
// Programs and a runtime beside its reference, for the tests of the laws.
#include "runtime/host/host_slab.h"
#include "tests/unit/runtime_fixture.h"

namespace gravure {

inline const char* const kForwardBackward = R"(gravure 1
graph forward(%w : Float(4, 4, strides=[4, 1], device=cpu) {parameter "w"},
              %x : Float(8, 4, strides=[4, 1], device=cpu) {user_input "x"}):
  %xs : Float(8, 4, strides=[4, 1], device=cpu) = cudagraph::stage(%x)
  %a.out : Float(8, 4, strides=[4, 1], device=cpu), %m.out : Bool(8, 4, strides=[4, 1], device=cpu), %s.out : Float(device=cpu) = cudagraph::launch[index=0, tags=["static: parameter", "staged: user input"]](%w, %xs)
    block0(%w.0 : Float(4, 4, strides=[4, 1], device=cpu), %xs.0 : Float(8, 4, strides=[4, 1], device=cpu)):
      %wt : Float(4, 4, strides=[1, 4], device=cpu) = aten::t(%w.0)
      %y : Float(8, 4, strides=[4, 1], device=cpu) = aten::mm(%xs.0, %wt)
      %a : Float(8, 4, strides=[4, 1], device=cpu) = aten::tanh(%y)
      %d : Float(8, 4, strides=[4, 1], device=cpu), %m : Bool(8, 4, strides=[4, 1], device=cpu) = aten::native_dropout(%a, 0.5, True)
      %s : Float(device=cpu) = aten::sum(%d)
      -> (%a, %m, %s)
  %s.own : Float(device=cpu) = cudagraph::own(%s.out)
  return (%s.own {loss}, %a.out {saved "a"}, %m.out {saved "m"}, %xs {saved "x"})
graph backward(%a : Float(8, 4, strides=[4, 1], device=cpu) {saved "a"},
               %m : Bool(8, 4, strides=[4, 1], device=cpu) {saved "m"},
               %x : Float(8, 4, strides=[4, 1], device=cpu) {saved "x"},
               %g : Float(device=cpu) {tangent "loss"}):
  %gs : Float(device=cpu) = cudagraph::stage(%g)
  %gw.out : Float(4, 4, strides=[4, 1], device=cpu) = cudagraph::launch[index=0, tags=["static: saved value", "static: saved value", "static: saved value", "staged: tangent"]](%a, %m, %x, %gs)
    block0(%a.0 : Float(8, 4, strides=[4, 1], device=cpu), %m.0 : Bool(8, 4, strides=[4, 1], device=cpu), %x.0 : Float(8, 4, strides=[4, 1], device=cpu), %gs.0 : Float(device=cpu)):
      %e : Float(8, 4, strides=[0, 0], device=cpu) = aten::expand(%gs.0, [8, 4])
      %gd : Float(8, 4, strides=[4, 1], device=cpu) = aten::native_dropout_backward(%e, %m.0, 2.)
      %ga : Float(8, 4, strides=[4, 1], device=cpu) = aten::tanh_backward(%gd, %a.0)
      %gt : Float(4, 8, strides=[1, 4], device=cpu) = aten::t(%ga)
      %gw : Float(4, 4, strides=[4, 1], device=cpu) = aten::mm(%gt, %x.0)
      -> (%gw)
  %gw.own : Float(4, 4, strides=[4, 1], device=cpu) = cudagraph::own(%gw.out)
  return (%gw.own {gradient "w"})
)";

inline const char* const kScaled = R"(gravure 1
graph step(%w : Float(4, strides=[1], device=cpu) {parameter "w"}, %n : int {symint "s0"}):
  %y.out : Float(4, strides=[1], device=cpu) = cudagraph::launch[index=0, tags=["static: parameter", "guarded: s0"]](%w, %n)
    block0(%w.0 : Float(4, strides=[1], device=cpu), %n.0 : int):
      %y : Float(4, strides=[1], device=cpu) = aten::mul.Scalar(%w.0, %n.0)
      -> (%y)
  %y.own : Float(4, strides=[1], device=cpu) = cudagraph::own(%y.out)
  return (%y.own {output "y"})
)";

inline const char* const kIllegal = R"(gravure 1
graph step(%w : Float(4, strides=[1], device=cpu) {parameter "w"}, %b : Float(4, strides=[1], device=cpu) {buffer "b"}):
  %y.out : Float(4, strides=[1], device=cpu), %b2.out : Float(4, strides=[1], device=cpu) = cudagraph::launch[index=0](%w, %b)
    block0(%w.0 : Float(4, strides=[1], device=cpu), %b.0 : Float(4, strides=[1], device=cpu)):
      %r : Float(4, strides=[1], device=cpu) = aten::rand_like(%w.0)
      %b2 : Float(4, strides=[1], device=cpu) = aten::add_.Tensor(%b.0, %r)
      %s : Float(device=cpu) = aten::sum(%w.0)
      %n : float = aten::_local_scalar_dense(%s) @"model.py:7" in "gate"
      %y : Float(4, strides=[1], device=cpu) = aten::mul.Tensor(%b2, %n)
      -> (%y, %b2)
  %y.own : Float(4, strides=[1], device=cpu) = cudagraph::own(%y.out)
  return (%y.own {output "y"}, %b2.out {mutation %b})
)";

/// Between two partitions the host makes a view: row %i of what the first one computed.
inline const char* const kHostView = R"(gravure 1
graph step(%x : Float(4, 8, strides=[8, 1], device=cpu) {user_input "x"},
           %i : Long(device=cpu) {user_input "i"}):
  %xs : Float(4, 8, strides=[8, 1], device=cpu) = cudagraph::stage(%x)
  %y.out : Float(4, 8, strides=[8, 1], device=cpu) = cudagraph::launch[index=0, tags=["staged: user input"]](%xs)
    block0(%x.0 : Float(4, 8, strides=[8, 1], device=cpu)):
      %y : Float(4, 8, strides=[8, 1], device=cpu) = aten::mul.Scalar(%x.0, 2)
      -> (%y)
  %n : int = aten::_local_scalar_dense(%i)
  %v : Float(8, strides=[1], device=cpu) = aten::select.int(%y.out, 0, %n)
  %z.out : Float(8, strides=[1], device=cpu) = cudagraph::launch[index=1, tags=["static: host node"]](%v)
    block0(%v.1 : Float(8, strides=[1], device=cpu)):
      %z : Float(8, strides=[1], device=cpu) = aten::mul.Scalar(%v.1, 3)
      -> (%z)
  %z.own : Float(8, strides=[1], device=cpu) = cudagraph::own(%z.out)
  return (%z.own {output "z"})
)";

/// A training step on a runtime and on the uncaptured path, with the same data and random state.
struct SideBySide {
  std::unique_ptr<Runtime> runtime, reference;
  at::Tensor w = at::randn({8, 4}).set_requires_grad(true);
  at::Tensor b = at::zeros({8}), referenceB = at::zeros({8});

  explicit SideBySide(RuntimeOptions options = {})
      : runtime(makeRuntime(kTrainingStep, std::move(options))),
        reference(makeReference(kTrainingStep)) {}

  /// True if results, buffer and random state agree in bits. Drops the last results, as training does.
  bool step() {
    last.clear();
    const at::Tensor x = at::randn({16, 4}), state = rngState();
    const auto expected = reference->run("step", {w, referenceB, x});
    const at::Tensor after = rngState();
    setRngState(state);
    last = runtime->run("step", {w, b, x});
    return sameBits(last, expected) && sameBits(rngState(), after) && sameBits(b, referenceB);
  }
  std::vector<c10::IValue> last;
};

inline std::vector<c10::IValue> backwardInputs(const std::vector<c10::IValue>& forward) {
  return {forward[1], forward[2], forward[3], at::ones({})};
}

/// A forward and its backward on a runtime and on the uncaptured path, with the same data and random
/// state.
struct ForwardBackward {
  /// What `forward` returned: the runtime's, and the reference's.
  struct Values {
    std::vector<c10::IValue> got, expected;
  };

  /// `text`: kForwardBackward, or as it is for another number of rows.
  explicit ForwardBackward(const std::string& text = kForwardBackward, int64_t rows = 8,
                           RuntimeOptions options = {})
      : rows(rows), runtime(makeRuntime(text, std::move(options))), reference(makeReference(text)) {
  }

  Values forward() {
    const at::Tensor x = at::randn({rows, 4}), state = rngState();
    Values values;
    values.expected = reference->run("forward", {w, x});
    setRngState(state);
    values.got = runtime->run("forward", {w, x});
    CHECK(sameBits(values.got, values.expected));
    return values;
  }
  void backward(const Values& values) {
    const auto expected = reference->run("backward", backwardInputs(values.expected));
    CHECK(sameBits(runtime->run("backward", backwardInputs(values.got)), expected));
  }

  int64_t rows;
  at::Tensor w = at::randn({4, 4});
  std::unique_ptr<Runtime> runtime, reference;
};

}  // namespace gravure
