// Inputs that lie at other remainders of 16 bytes than memory that an allocator gives: kernels round
// otherwise there, on some processors.
#include "runtime/results/address_remainder.h"
#include "tests/unit/law_fixture.h"

using namespace gravure;

namespace {

/// The same values `elements` past a place that the allocator gives.
at::Tensor partOf(const at::Tensor& tensor, int64_t elements) {
  const at::Tensor all = at::empty({tensor.numel() + elements}, tensor.options());
  return all.narrow(0, elements, tensor.numel()).view(tensor.sizes()).copy_(tensor);
}

struct Lying : SideBySide {
  using SideBySide::SideBySide;

  /// A step on an input that lies so many elements past.
  bool stepAt(int64_t elements) {
    last.clear();
    const at::Tensor x = partOf(at::randn({16, 4}), elements), state = rngState();
    const auto expected = reference->run("step", {w, referenceB, x});
    setRngState(state);
    last = runtime->run("step", {w, b, x});
    return sameBits(last, expected) && sameBits(b, referenceB);
  }
  int64_t uncaptured() const { return runtime->stats().uncapturedSteps; }
  size_t said(const char* name) const { return runtime->remarks().count(name); }
};

const char* const kLookUp = R"(gravure 1
graph step(%w : Float(9, 4, strides=[4, 1], device=cpu) {parameter "w"},
           %i : Long(6, strides=[1], device=cpu) {user_input "i"}):
  %is : Long(6, strides=[1], device=cpu) = cudagraph::stage(%i)
  %y.out : Float(6, 4, strides=[4, 1], device=cpu) = cudagraph::launch[index=0, tags=["static: parameter", "staged: user input"]](%w, %is)
    block0(%w.0 : Float(9, 4, strides=[4, 1], device=cpu), %i.0 : Long(6, strides=[1], device=cpu)):
      %y : Float(6, 4, strides=[4, 1], device=cpu) = aten::index_select(%w.0, 0, %i.0)
      -> (%y)
  %y.own : Float(6, 4, strides=[4, 1], device=cpu) = cudagraph::own(%y.out)
  return (%y.own {output "y"})
)";

const char* const kPart = R"(gravure 1
graph step(%w : Float(17, strides=[1], device=cpu) {parameter "w"},
           %x : Float(17, strides=[1], device=cpu) {user_input "x"}):
  %xs : Float(17, strides=[1], device=cpu) = cudagraph::stage(%x)
  %s.out : Float(16, strides=[1], device=cpu) = cudagraph::launch[index=0, tags=["static: parameter", "staged: user input"]](%w, %xs)
    block0(%w.0 : Float(17, strides=[1], device=cpu), %x.0 : Float(17, strides=[1], device=cpu)):
      %y : Float(17, strides=[1], device=cpu) = aten::mul.Tensor(%x.0, %w.0)
      %s : Float(16, strides=[1], device=cpu) = aten::slice.Tensor(%y, 0, 1, 17, 1)
      -> (%s)
  %s.own : Float(16, strides=[1], device=cpu) = cudagraph::own(%s.out)
  return (%s.own {output "s"})
)";

}  // namespace

TEST_CASE("memory for a copy has the remainder of what it stands for", "[law1]") {
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kDouble, at::kComplexFloat}) {
    for (int64_t elements = 0; elements < 9; ++elements) {
      const at::Tensor like = partOf(at::zeros({3, 5}, dtype), elements).t();
      const at::Tensor made = emptyAlike(like);
      CAPTURE(elements, toString(dtype));
      CHECK(addressRemainder(like) == elements * static_cast<int64_t>(like.element_size()) % 16);
      CHECK(addressRemainder(made) == addressRemainder(like));
      CHECK(made.sizes() == like.sizes());
      CHECK(made.strides() == like.strides());
      CHECK_FALSE(made.storage().is_alias_of(like.storage()));
    }
  }
  CHECK(addressRemainder(partOf(at::zeros({3}, at::kLong), 1)) == 0);
  CHECK(addressRemainder(at::zeros({0})) == 0);
}

TEST_CASE("an input at an odd address is captured, in the bits of an uncaptured step", "[law1]") {
  Lying pair;
  for (int step = 0; step < 12; ++step) {
    CAPTURE(step);
    CHECK(pair.stepAt(3));
  }
  CHECK(pair.uncaptured() == 2);
  CHECK(pair.runtime->stats().replays == 2 * 10);
}

TEST_CASE("an input that has come to stay at an odd address is captured there", "[law1][law3]") {
  Lying pair;
  for (int step = 0; step < 20; ++step) {
    CAPTURE(step);
    CHECK(pair.stepAt(step < 6 ? 0 : 1));
  }
  CHECK(pair.uncaptured() == 2 + 2 + 2);
  CHECK(pair.said("guard-failed") == 1);
  CHECK(pair.said("layout-anew") == 1);
  CHECK(pair.said("often-uncaptured") == 0);
}

TEST_CASE("inputs at odd addresses now and then run uncaptured, and it is said", "[law1][law11]") {
  Lying pair;
  for (int step = 0; step < 40; ++step) {
    CAPTURE(step);
    CHECK(pair.stepAt(step < 2 || step % 2 == 0 ? 4 : 1));
  }
  CHECK(pair.uncaptured() == 2 + 19);
  CHECK(pair.said("guard-failed") == 1);
  CHECK(pair.said("often-uncaptured") == 1);
  CHECK(pair.said("layout-anew") == 0);
}

TEST_CASE("numbers that do not round are captured wherever they lie", "[law1]") {
  const auto runtime = makeRuntime(kLookUp);
  const at::Tensor w = at::randn({9, 4});
  for (int step = 0; step < 12; ++step) {
    const at::Tensor i = partOf(at::randint(9, {6}, at::kLong), step % 2);
    CHECK(sameBits(runtime->run("step", {w, i})[0].toTensor(), w.index_select(0, i)));
  }
  CHECK(runtime->stats().uncapturedSteps == 2);
}

TEST_CASE("a result that is a part of a tensor lies as eager's does", "[law1]") {
  const auto runtime = makeRuntime(kPart);
  const at::Tensor w = at::randn({17});
  for (int step = 0; step < 6; ++step) {
    const at::Tensor x = at::randn({17});
    const at::Tensor part = runtime->run("step", {w, x})[0].toTensor();
    CHECK(sameBits(part, (x * w).slice(0, 1)));
    CHECK(addressRemainder(part) == 4);
  }
  CHECK(runtime->stats().replays == 4);
}

TEST_CASE("a copy of a parameter that moves lies as the parameter does", "[law1]") {
  Lying pair;
  for (int step = 0; step < 24; ++step) {
    if (step >= 4) pair.w = partOf(pair.w.detach(), 3).mul_(0.9);
    CAPTURE(step);
    CHECK(pair.step());
  }
  CHECK(pair.said("input-staged") == 1);
  CHECK(pair.runtime->stats().replays > 2 * 12);
}
