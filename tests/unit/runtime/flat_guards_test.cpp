// law 3: what differs from what was captured is seen, in whatever it differs.
#include "runtime/program/flat_guards.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

namespace gravure {
namespace {

using Values = std::vector<c10::IValue>;

FlatGuards guardsOf(const at::Tensor& first, const at::Tensor& second) {
  FlatGuards guards;
  guards.add(0, *OperandGuard(first, /*keep=*/true).layout());
  guards.add(2, *OperandGuard(second, /*keep=*/true).layout());
  return guards;
}

TEST_CASE("law 3: flat guards see address, sizes, strides and dtype of each tensor", "[law3]") {
  const at::Tensor a = at::ones({2, 3}), b = at::ones({4});
  const FlatGuards guards = guardsOf(a, b);
  CHECK(guards.hold(Values{a, 1, b}));
  CHECK(guards.hold(Values{a.detach(), 2, b.view({4})}));
  CHECK_FALSE(guards.hold(Values{a.clone(), 1, b}));
  CHECK_FALSE(guards.hold(Values{a, 1, b.clone()}));
  CHECK_FALSE(guards.hold(Values{a.view({3, 2}), 1, b}));
  CHECK_FALSE(guards.hold(Values{a.as_strided({2, 3}, {1, 2}), 1, b}));
  CHECK_FALSE(guards.hold(Values{a.view(at::kInt), 1, b}));
  CHECK_FALSE(guards.hold(Values{a.flatten(), 1, b}));
  CHECK_FALSE(guards.hold(Values{a, 1, b.narrow(0, 0, 3)}));
  CHECK_FALSE(guards.hold(Values{1.0, 1, b}));
  CHECK_FALSE(guards.hold(Values{c10::IValue(), 1, b}));
  CHECK_FALSE(guards.hold(Values{at::Tensor(), 1, b}));
}

TEST_CASE("law 3: the device of a tensor without memory is seen", "[law3]") {
  const at::Tensor none = at::empty({0});
  const FlatGuards guards = guardsOf(none, none);
  CHECK(guards.hold(Values{at::empty({0}), 1, none}));
  CHECK_FALSE(guards.hold(Values{at::empty({0}, at::kMeta), 1, none}));
}

TEST_CASE("what is copied may lie anywhere that kernels round alike", "[law3]") {
  const at::Tensor buffer = at::zeros({1, 4}), many = at::zeros({64});
  FlatGuards guards;
  guards.addCopied(0, buffer);
  CHECK(guards.hold(Values{at::ones({1, 4})}));
  CHECK(guards.hold(
      Values{at::ones({4}).as_strided({1, 4}, {9, 1})}));  // one row: its stride is free
  CHECK(guards.hold(Values{many.narrow(0, 4, 4).view({1, 4})}));
  CHECK_FALSE(guards.hold(Values{many.narrow(0, 1, 4).view({1, 4})}));
  CHECK_FALSE(guards.hold(Values{at::ones({4}).as_strided({1, 4}, {4, 0})}));
  CHECK_FALSE(guards.hold(Values{at::ones({4, 1})}));
  CHECK_FALSE(guards.hold(Values{at::ones({1, 4}, at::kDouble)}));
  FlatGuards ofInts;  // no kernel rounds these
  ofInts.addCopied(0, buffer.to(at::kInt));
  CHECK(ofInts.hold(Values{many.to(at::kInt).narrow(0, 1, 4).view({1, 4})}));
}

}  // namespace
}  // namespace gravure
