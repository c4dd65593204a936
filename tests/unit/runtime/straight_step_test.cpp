// Runtime::runStraight: in the bits of run(), or nothing has run.
#include "tests/unit/runtime_fixture.h"

#include <functional>
#include <set>

using namespace gravure;

namespace {

const char* const kStep = R"(gravure 1
graph step(%w : Float(4, 4, strides=[4, 1], device=cpu) {parameter "w"},
           %g : Float(4, 4, strides=[4, 1], device=cpu) {buffer "w.grad"},
           %n : Float(device=cpu) {buffer "n"}, %m : Float(device=cpu) {buffer "m"},
           %lr : float {symint "lr"}):
  aten::add_.Tensor(%n, 1)
  aten::add_.Tensor(%m, 1)
  %x : float = aten::_local_scalar_dense(%n)
  %y : float = aten::_local_scalar_dense(%m)
  %p : float = aten::div.float(%lr, %x)
  %q : float = aten::div.float(%lr, %y)
  cudagraph::launch[index=0, tags=["static: parameter", "static: buffer", "guarded: %p", "guarded: %q"]](%w, %g, %p, %q)
    block0(%w.0 : Float(4, 4, strides=[4, 1], device=cpu), %g.0 : Float(4, 4, strides=[4, 1], device=cpu), %p.0 : float, %q.0 : float):
      aten::add_.Tensor(%w.0, %g.0, alpha=%p.0)
      aten::mul_.Scalar(%w.0, %q.0)
      -> ()
  return ()
)";

/// A step on a runtime that goes straight where it can, and uncaptured.
struct Both {
  Both() : runtime(makeRuntime(kStep)), reference(makeReference(kStep)) {
    for (auto* values : {&given, &expected}) {
      at::manual_seed(0);
      *values = {at::rand({4, 4}), at::rand({4, 4}), at::full({}, 3.0f), at::full({}, 3.0f), 0.5};
    }
    for (int i = 0; i < 10; ++i) (void)step(0.5 + 0.01 * i);
    REQUIRE(step(0.9));
  }

  /// True if it went straight.
  bool step(double lr) {
    expected[4] = given[4] = lr;
    (void)reference->run("step", expected);
    const bool ran = runtime->runStraight("step", given, {}, {}).ran;
    if (!ran) (void)runtime->run("step", given);
    for (size_t i = 0; i < 4; ++i) {
      CAPTURE(i);
      CHECK(sameBits({given[i]}, {expected[i]}));
    }
    return ran;
  }
  void each(const std::function<void(std::vector<c10::IValue>&)>& change) {
    change(given);
    change(expected);
  }

  std::vector<c10::IValue> given, expected;
  std::unique_ptr<Runtime> runtime, reference;
};

using Values = std::vector<c10::IValue>;

}  // namespace

TEST_CASE("law 1: a straight step has the bits of any other", "[law1]") {
  Both both;
  const int64_t uncaptured = both.runtime->stats().uncapturedSteps;
  const uint32_t version = both.given[0].toTensor()._version();
  for (int i = 0; i < 20; ++i) CHECK(both.step(0.3 + 0.02 * i));
  CHECK(both.runtime->stats().uncapturedSteps == uncaptured);
  CHECK(both.given[0].toTensor()._version() == version + 20);
}

TEST_CASE("law 3: what differs in a straight step is noticed in the same step", "[law3]") {
  const struct {
    const char* what;
    std::function<void(Values&)> change;
    bool straight;  // in the step behind it
  } rows[] = {
      {"a step count is set", [](Values& v) { v[2].toTensor().fill_(9); }, true},
      {"another step count takes its place", [](Values& v) { v[3] = at::full({}, 7.0f); }, true},
      {"a step count is given other memory",
       [](Values& v) { v[3].toTensor().set_data(at::full({}, 7.0f)); }, true},
      {"two step counts are one", [](Values& v) { v[3] = v[2]; }, false},
      {"two step counts share memory", [](Values& v) { v[3].toTensor().set_data(v[2].toTensor()); },
       false},
      {"a step count is negated when it is read",
       [](Values& v) { v[2] = at::_neg_view(at::full({}, -5.0f)); }, false},
      {"the parameter is given other memory",
       [](Values& v) {
         v[0].toTensor().set_data(at::full({4, 4}, 0.25f));
       },
       false},
      {"the gradient is another one",
       [](Values& v) {
         v[1] = at::full({4, 4}, 0.25f);
       },
       false},
      {"the gradient is transposed", [](Values& v) { v[1] = v[1].toTensor().t(); }, false},
      {"the gradient is negated when it is read",
       [](Values& v) { v[1] = at::_neg_view(v[1].toTensor()); }, false},
  };
  for (const auto& row : rows) {
    INFO(row.what);
    Both both;
    both.each(row.change);
    CHECK(both.step(0.7) == row.straight);
    for (int i = 0; i < 8; ++i) (void)both.step(0.6 + 0.01 * i);
  }
}

TEST_CASE("law 3: counts that conditions are on are said, and nothing runs where they are others",
          "[law3]") {
  Both both;
  both.given[3].toTensor().fill_(40);
  const float now = both.given[2].toTensor().item<float>();
  const std::vector<int64_t> counters = {2, 3};
  const at::Tensor before = both.given[0].toTensor().clone();
  auto answer = both.runtime->runStraight("step", both.given, counters, {1.0});
  CHECK_FALSE(answer.ran);
  CHECK(std::set<double>(answer.counts.begin(), answer.counts.end()) ==
        std::set<double>{now, 40.0});
  CHECK(both.given[0].toTensor().equal(before));
  CHECK(both.given[3].toTensor().item<float>() == 40);
  answer = both.runtime->runStraight("step", both.given, counters, answer.counts);
  CHECK(answer.ran);
  CHECK(std::set<double>(answer.counts.begin(), answer.counts.end()) ==
        std::set<double>{now + 1.0, 41.0});
}

TEST_CASE("law 2: a straight step copies what moves, and hands back what it writes there",
          "[law2]") {
  for (const size_t moving : {0U, 1U}) {  // the parameter, the gradient
    CAPTURE(moving);
    Both both;
    std::vector<c10::IValue> alive;  // so that no two lie at one address
    const auto move = [&] {
      both.each([&](Values& v) {
        alive.push_back(v[moving]);
        v[moving] = v[moving].toTensor().clone();
      });
    };
    for (int i = 0; i < 8; ++i) {
      move();
      (void)both.step(0.3 + 0.02 * i);
    }
    const int64_t uncaptured = both.runtime->stats().uncapturedSteps;
    for (int i = 0; i < 8; ++i) {
      move();
      CHECK(both.step(0.5 + 0.02 * i));
      CHECK(both.given[moving].toTensor()._version() == (moving == 0 ? 1 : 0));
    }
    CHECK(both.runtime->stats().uncapturedSteps == uncaptured);

    both.runtime->device().injectFault(FaultPoint::Launch, 1);
    move();
    CHECK(both.step(0.4));
    move();
    (void)both.step(0.41);

    both.each([&](Values& v) { v[moving] = v[moving].toTensor().t(); });
    CHECK_FALSE(both.step(0.43));

    both.each([&](Values& v) { v[moving] = v[1 - moving]; });  // one is written
    CHECK_FALSE(both.step(0.45));
    move();
    for (int i = 0; i < 4; ++i) (void)both.step(0.3 + 0.01 * i);
  }
}

TEST_CASE("law 2: a step count that moves in each step is counted in where it lies", "[law2]") {
  Both both;
  std::vector<c10::IValue> alive;
  for (int i = 0; i < 12; ++i) {
    both.each([&](Values& v) {
      alive.push_back(v[2]);
      v[2] = v[2].toTensor().clone();
    });
    (void)both.step(0.3 + 0.02 * i);
  }
}

TEST_CASE("law 6: a launch that fails in a straight step costs no bits", "[law6]") {
  Both both;
  both.runtime->device().injectFault(FaultPoint::Launch, 1);
  CHECK(both.step(0.4));
  for (int i = 0; i < 4; ++i) (void)both.step(0.3 + 0.01 * i);
}

TEST_CASE("a number for which an operator refuses is refused by the operator") {
  Both both;
  both.each([](Values& values) { values[2].toTensor().fill_(-1); });
  const at::Tensor before = both.given[0].toTensor().clone();
  CHECK_FALSE(both.runtime->runStraight("step", both.given, {}, {}).ran);
  CHECK(both.given[0].toTensor().equal(before));
  CHECK(both.given[2].toTensor().item<float>() == -1);
}
