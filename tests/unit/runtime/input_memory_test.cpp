// law 3: inputs that share memory which the entry writes are seen, and no others.
#include "runtime/program/input_memory.h"
#include "tests/unit/runtime_fixture.h"

#include <algorithm>
#include <random>
#include <set>

namespace gravure {
namespace {

using Values = std::vector<c10::IValue>;

/// By bytes, one by one.
std::set<uintptr_t> bytesOf(const at::Tensor& tensor) {
  std::set<uintptr_t> bytes;
  std::vector<int64_t> at(tensor.dim(), 0);
  for (int64_t n = 0; n < tensor.numel(); ++n) {
    int64_t rest = n, offset = 0;
    for (int64_t d = tensor.dim() - 1; d >= 0; --d) {
      offset += rest % tensor.size(d) * tensor.stride(d);
      rest /= tensor.size(d);
    }
    const auto first = reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) +
                       static_cast<uintptr_t>(offset) * tensor.element_size();
    for (int64_t b = 0; b < tensor.element_size(); ++b) bytes.insert(first + b);
  }
  return bytes;
}

bool meet(const at::Tensor& a, const at::Tensor& b) {
  const std::set<uintptr_t> left = bytesOf(a), right = bytesOf(b);
  return std::any_of(left.begin(), left.end(), [&](uintptr_t each) { return right.count(each); });
}

bool shared(const Values& values, const std::vector<size_t>& written) {
  return findShared(values, written).has_value();
}

}  // namespace

TEST_CASE("law 3: what is written shares memory byte by byte, whoever holds it", "[law3]") {
  const at::Tensor all = at::zeros({4, 6});
  const at::Tensor other = at::from_blob(all.mutable_data_ptr(), {4, 6});
  CHECK_FALSE(shared({all, at::zeros({4, 6})}, {0}));
  CHECK(shared({all, all}, {0}));
  CHECK(shared({all, other}, {1}));
  CHECK(shared({all.narrow(0, 0, 3), all.narrow(0, 2, 2)}, {0}));
  CHECK_FALSE(shared({all.narrow(0, 0, 2), all.narrow(0, 2, 2)}, {0, 1}));
  CHECK_FALSE(shared({all.narrow(1, 0, 2), all.narrow(1, 2, 4)}, {0, 1}));
  CHECK(shared({all.narrow(1, 0, 3), all.narrow(1, 2, 4)}, {0, 1}));
  CHECK(shared({all.view(at::kByte).narrow(1, 3, 2), all.narrow(1, 1, 1)}, {0}));
  CHECK_FALSE(shared({all, all.view({24})}, {}));  // read alone
  CHECK_FALSE(shared({at::zeros({2}), all, all.view({24})}, {0}));
  CHECK_FALSE(shared({all.narrow(0, 0, 0), all}, {0, 1}));
  CHECK_FALSE(shared({all, 1, 0.5, c10::IValue(), at::Tensor()}, {0}));
  CHECK(shared({all.expand({2, 4, 6}), all[3][5]}, {1}));
}

TEST_CASE("law 3: who shares with whom is said, the one that is written first", "[law3]") {
  const at::Tensor all = at::zeros({8});
  const auto found = findShared(Values{all.narrow(0, 0, 4), at::zeros({8}), all.narrow(0, 3, 4)},
                                std::vector<size_t>{1, 2});
  REQUIRE(found.has_value());
  CHECK(found->written == 2);
  CHECK(found->other == 0);
}

TEST_CASE("law 3: stand-ins share as their storages do", "[law3]") {
  const at::Tensor all = at::empty({8}, at::kMeta);
  CHECK(shared({all.narrow(0, 0, 4), all.narrow(0, 3, 4)}, {0}));
  CHECK_FALSE(shared({all.narrow(0, 0, 4), all.narrow(0, 4, 4)}, {0}));
  CHECK_FALSE(shared({all, at::empty({8}, at::kMeta)}, {0}));
}

TEST_CASE("law 3: as byte by byte, for views of any strides", "[law3]") {
  std::mt19937 random(7);
  const auto draw = [&](int64_t from, int64_t to) {
    return std::uniform_int_distribution<int64_t>(from, to)(random);
  };
  const at::Tensor all = at::zeros({160});
  int meeting = 0;
  for (int i = 0; i < 2000; ++i) {
    at::Tensor views[2];
    for (at::Tensor& view : views) {
      std::vector<int64_t> sizes, strides;
      for (int64_t d = draw(0, 3); d > 0; --d) {
        sizes.push_back(draw(1, 4));
        strides.push_back(draw(0, 12));
      }
      view = all.as_strided(sizes, strides, draw(0, 40));
    }
    const bool expected = meet(views[0], views[1]);
    meeting += expected ? 1 : 0;
    CAPTURE(views[0].sizes(), views[0].strides(), views[1].sizes(), views[1].strides());
    CHECK(shared({views[0], views[1]}, {static_cast<size_t>(i % 2)}) == expected);
  }
  CHECK(meeting > 200);
  CHECK(meeting < 1800);
}

TEST_CASE("law 3: what may lie elsewhere is looked at where it lies elsewhere", "[law3]") {
  const at::Tensor w = at::zeros({8}), b = at::zeros({8});
  const std::vector<size_t> written = {0, 3};
  LooseInputs loose(written);
  loose.addFixed(0, *OperandGuard(w, /*keep=*/true).layout());
  loose.addFixed(1, *OperandGuard(b, /*keep=*/true).layout());
  loose.addLoose(2);
  loose.addLoose(3);
  loose.close();
  const at::Tensor x = at::zeros({8}), n = at::zeros({1});
  CHECK(loose.areApart({w, b, x, n}));
  CHECK(loose.areApart({w, b, b, n}));                // neither is written
  CHECK(loose.areApart({w, b, 1.0, c10::IValue()}));  // no tensors
  CHECK_FALSE(loose.areApart({w, b, w.narrow(0, 7, 1), n}));
  CHECK_FALSE(loose.areApart({w, b, w.narrow(0, 7, 1), n}));  // as in the step before
  CHECK_FALSE(loose.areApart({w, b, x, b.narrow(0, 0, 1)}));
  CHECK_FALSE(loose.areApart({w, b, x, x.narrow(0, 2, 1)}));
  CHECK(loose.areApart({w, b, x, n}));

  LooseInputs reads;
  reads.addFixed(0, *OperandGuard(w, /*keep=*/true).layout());
  reads.addLoose(1);
  reads.close();
  CHECK(reads.areApart({w, w}));
}

TEST_CASE("law 3: of many that lie elsewhere in each step, as pair by pair", "[law3]") {
  std::mt19937 random(0);
  const auto draw = [&](int64_t n) { return static_cast<int64_t>(random() % n); };
  const at::Tensor space = at::zeros({64});
  int apart = 0;
  for (int round = 0; round < 200; ++round) {
    std::vector<size_t> written;
    for (size_t i = 0; i < 6; ++i) {
      if (draw(3) == 0) written.push_back(i);
    }
    const auto isWritten = [&](size_t i) {
      return std::find(written.begin(), written.end(), i) != written.end();
    };
    std::vector<c10::IValue> values = {space.narrow(0, 0, 4), space.narrow(0, 8, 4)};
    LooseInputs loose(written);
    for (size_t i = 0; i < 2; ++i)
      loose.addFixed(i, *OperandGuard(values[i], /*keep=*/true).layout());
    for (size_t i = 2; i < 6; ++i) loose.addLoose(i);
    loose.close();
    values.resize(6);
    for (int step = 0; step < 20; ++step) {
      for (size_t i = 2; i < 6; ++i) {
        if (step == 0 || draw(2) == 0) values[i] = space.narrow(0, draw(60), draw(5));
      }
      bool expected = true;
      for (size_t i = 0; i < 6; ++i) {
        for (size_t j = std::max<size_t>(i + 1, 2); j < 6; ++j) {
          if (!isWritten(i) && !isWritten(j)) continue;
          const at::Tensor &a = values[i].toTensor(), &b = values[j].toTensor();
          const int64_t from = std::max(a.storage_offset(), b.storage_offset());
          const int64_t to =
              std::min(a.storage_offset() + a.numel(), b.storage_offset() + b.numel());
          if (from < to) expected = false;
        }
      }
      CAPTURE(round, step);
      CHECK(loose.areApart(values) == expected);
      apart += expected ? 1 : 0;
    }
  }
  CHECK(apart > 400);
  CHECK(apart < 3600);
}

TEST_CASE("law 3: a step whose inputs share what it writes is refused, and nothing has run",
          "[law3][law2]") {
  RuntimeOptions options;
  options.refuseShared = true;
  const char* const text = R"(gravure 1
graph step(%b : Float(8, strides=[1], device=cpu) {buffer "b"},
           %x : Float(8, strides=[1], device=cpu) {user_input "x"}):
  %xs : Float(8, strides=[1], device=cpu) = cudagraph::stage(%x)
  %y.out : Float(8, strides=[1], device=cpu) = cudagraph::launch[index=0, tags=["static: mutated buffer", "staged: user input"]](%b, %xs)
    block0(%b.0 : Float(8, strides=[1], device=cpu), %x.0 : Float(8, strides=[1], device=cpu)):
      aten::add_.Tensor(%b.0, %x.0)
      %y : Float(8, strides=[1], device=cpu) = aten::mul.Tensor(%x.0, %b.0)
      -> (%y)
  %y.own : Float(8, strides=[1], device=cpu) = cudagraph::own(%y.out)
  return (%y.own {output "y"})
)";
  const auto runtime = makeRuntime(text, options);
  const at::Tensor all = at::rand({12}), b = all.narrow(0, 0, 8);
  at::Tensor expected = b.clone();
  for (int i = 0; i < 12; ++i) {
    const at::Tensor x = at::rand({8});
    const auto before = b.clone();
    for (const at::Tensor& other : {b, all.narrow(0, 4, 8)}) {
      CHECK_THROWS_AS(runtime->run("step", {b, other}), InputsShared);
      CHECK_THROWS_AS(runtime->runUncaptured("step", {b, other}), InputsShared);
    }
    CHECK(sameBits({b}, {before}));
    expected.add_(x);
    const auto results = runtime->run("step", {b, x});
    CHECK(sameBits({b}, {expected}));
    CHECK(sameBits(results, {x * expected}));
  }
  CHECK(runtime->stats().replays > 6);
  CHECK(runtime->stats().uncapturedSteps == 2);
}

}  // namespace gravure
