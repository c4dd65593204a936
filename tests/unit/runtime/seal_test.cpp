// law 3: whatever must not be replayed with breaks the seal of a captured entry.
#include "runtime/results/results.h"
#include "runtime/step/seal.h"
#include "tests/unit/law_fixture.h"

#include <ATen/Parallel.h>

#include <functional>
#include <limits>

using namespace gravure;

namespace {

using Values = std::vector<c10::IValue>;

/// A seal of one input, of what is no tensor.
Seal sealOf(const OperandGuard& guard) {
  Seal::Contents contents;
  contents.others.emplace_back(0, &guard);
  return Seal(std::move(contents));
}

Seal::Contents sealOf(const at::Tensor& tensor) {
  Seal::Contents contents;
  contents.tensors.add(0, *OperandGuard(tensor, /*keep=*/true).layout());
  return contents;
}

}  // namespace

TEST_CASE("a seal holds for the very number, generator or None that was captured", "[law3]") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const at::Generator one = at::detail::createCPUGenerator(1);
  const at::Generator other = at::detail::createCPUGenerator(1);  // in the same state
  const struct {
    const char* what;
    c10::IValue captured, same;
    Values others;
  } rows[] = {
      {"an int", 3, 3, {4, 3.0, true, c10::IValue()}},
      {"a float", 0.5, 0.5, {0.25, 1, c10::IValue()}},
      {"a zero", 0.0, 0.0, {-0.0, 0, false}},
      {"a NaN", nan, nan, {0.0}},
      {"a bool", true, true, {false, 1, 1.0}},
      {"None", c10::IValue(), c10::IValue(), {0, false, at::zeros({})}},
      {"a generator", one, one, {other, c10::IValue()}},
  };
  for (const auto& row : rows) {
    INFO(row.what);
    const OperandGuard guard(row.captured, /*keep=*/true);
    const Seal seal = sealOf(guard);
    CHECK(seal.holds({row.same}));
    for (const c10::IValue& other : row.others) {
      INFO(other.tagKind());
      CHECK_FALSE(seal.holds({other}));
    }
  }
}

TEST_CASE("a seal holds for a CPU tensor without dimensions by its value, wherever it lies",
          "[law3]") {
  const OperandGuard guard = OperandGuard::ofNumber(at::scalar_tensor(0.5));
  const Seal seal = sealOf(guard);
  CHECK(seal.holds({at::scalar_tensor(0.5)}));
  CHECK_FALSE(seal.holds({at::scalar_tensor(0.25)}));
  CHECK_FALSE(seal.holds({at::scalar_tensor(0.5, at::kDouble)}));
  CHECK_FALSE(seal.holds({at::full({1}, 0.5)}));
  const OperandGuard ofZero = OperandGuard::ofNumber(at::scalar_tensor(0.0));
  CHECK_FALSE(sealOf(ofZero).holds({at::scalar_tensor(0, at::kInt)}));  // of the same bytes
  CHECK_FALSE(seal.holds({at::Tensor()}));
  CHECK_FALSE(seal.holds({0.5}));
}

TEST_CASE("a seal holds for the tensor that was captured", "[law3]") {
  const at::Tensor captured = at::randn({4, 4});
  const Seal seal(sealOf(captured));
  CHECK(seal.holds({captured}));
  CHECK(seal.holds({captured.detach()}));
  captured.add_(1);
  CHECK(seal.holds({captured}));
  CHECK_FALSE(seal.holds({captured.clone()}));
  CHECK_FALSE(seal.holds({captured.t()}));
  CHECK_FALSE(seal.holds({captured.view(at::kInt)}));
  CHECK_FALSE(seal.holds({captured.narrow(0, 0, 3)}));
  CHECK_FALSE(seal.holds({2.0}));
}

TEST_CASE("a seal asks of what no capture reads what the program's types ask", "[law3]") {
  const Program program = readProgram(R"(gravure 1
graph step(%x : Float(2, 3, strides=[3, 1], device=cpu) {user_input "x"}):
  return (%x {output "x"})
)");
  const InputCheck check(program.entries.front(), 0, DeviceMap{c10::kCPU, c10::kCPU});
  Seal::Contents contents;
  contents.free.emplace_back(0, &check);
  const Seal seal(std::move(contents));
  CHECK(seal.holds({at::ones({2, 3})}));
  CHECK_THROWS_WITH(seal.holds({at::ones({3, 2})}), Catch::Contains("user_input \"x\""));
  CHECK_THROWS_WITH(seal.holds({at::ones({2, 3}, at::kInt)}), Catch::Contains("dtype Float"));
}

TEST_CASE("a seal knows who holds a result that a replay would write over", "[law5]") {
  const auto free = std::make_shared<LoanBook>(), lent = std::make_shared<LoanBook>();
  Seal::Contents contents;
  contents.books = {free, lent};
  const Seal seal(std::move(contents));
  CHECK_FALSE(seal.resultsHeld());
  Lender lender(nullptr);
  at::Tensor result = lender.lend(at::ones({4}), lent);
  lender = Lender(nullptr);
  CHECK(seal.resultsHeld());
  at::Tensor view = result.view({2, 2});
  result.reset();
  CHECK(seal.resultsHeld());
  view.reset();
  CHECK_FALSE(seal.resultsHeld());
}

TEST_CASE("a sealed launch asks for what host nodes made for it", "[law3]") {
  const at::Tensor made = at::ones({4});
  const OperandGuard guard(made, /*keep=*/true);
  SealedLaunch launch;
  launch.captured = std::make_shared<CapturedPartition>();
  Frame frame(3);
  CHECK(launch.holds(frame));
  launch.guards.emplace_back(2, &guard);
  CHECK_FALSE(launch.holds(frame));
  frame[2] = made;
  CHECK(launch.holds(frame));
  frame[2] = made.clone();
  CHECK_FALSE(launch.holds(frame));
}

TEST_CASE("seals are for the captures that they were made of, until they are broken", "[law4]") {
  const auto captured = std::make_shared<CapturedPartition>();
  const std::vector<Partition> none, cold(1);
  Seals seals;
  CHECK_FALSE(seals.cover(none));
  Seal::Contents contents;
  contents.launches.push_back({captured, {}});
  seals.add(std::move(contents));
  CHECK_FALSE(seals.cover(none));  // another number of launches
  CHECK_FALSE(seals.cover(cold));  // another capture, or none any more
  seals.add(Seal::Contents());
  CHECK(seals.cover(none));
  seals.breakAll();
  CHECK_FALSE(seals.cover(none));
}

TEST_CASE("of several seals the one that holds is found", "[law3]") {
  const at::Tensor a = at::ones({2}), b = at::ones({3}), c = at::ones({4});
  Seals seals;
  CHECK(seals.find({a}) == nullptr);
  for (const at::Tensor& tensor : {a, b}) {
    Seal::Contents contents = sealOf(tensor);
    contents.readsLent = tensor.is_same(b);
    seals.add(std::move(contents));
  }
  REQUIRE(seals.find({a}) != nullptr);
  CHECK(seals.find({a})->readsLent() == false);
  REQUIRE(seals.find({b}) != nullptr);
  CHECK(seals.find({b})->readsLent() == true);
  CHECK(seals.find({c}) == nullptr);
  seals.breakAll();
  CHECK(seals.find({a}) == nullptr);
}

namespace {

// One partition that reads an input of each kind.
constexpr const char* kEveryKind = R"(gravure 1
graph step(%w : Float(4, 4, strides=[4, 1], device=cpu) {parameter "w"},
           %b : Float(4, 4, strides=[4, 1], device=cpu) {buffer "b"},
           %x : Float(4, 4, strides=[4, 1], device=cpu) {user_input "x"},
           %n : int {symint "s0"}, %g : Generator {rng_state "cpu#1"}):
  %xs : Float(4, 4, strides=[4, 1], device=cpu) = cudagraph::stage(%x)
  %y.out : Float(4, 4, strides=[4, 1], device=cpu), %b2.out : Float(4, 4, strides=[4, 1], device=cpu) = cudagraph::launch[index=0, tags=["static: parameter", "static: buffer", "staged: user input", "guarded: s0", "rng: cpu#1"]](%w, %b, %xs, %n, %g)
    block0(%w.0 : Float(4, 4, strides=[4, 1], device=cpu), %b.0 : Float(4, 4, strides=[4, 1], device=cpu), %x.0 : Float(4, 4, strides=[4, 1], device=cpu), %n.0 : int, %g.0 : Generator):
      %z : Float(4, 4, strides=[4, 1], device=cpu) = aten::mul.Scalar(%w.0, %n.0)
      %y : Float(4, 4, strides=[4, 1], device=cpu) = aten::mm(%z, %x.0)
      %d : Float(4, 4, strides=[4, 1], device=cpu), %m : Bool(4, 4, strides=[4, 1], device=cpu) = aten::native_dropout(%y, 0.5, True) rng(%g.0)
      %b2 : Float(4, 4, strides=[4, 1], device=cpu) = aten::add_.Tensor(%b.0, %d)
      -> (%d, %b2)
  %y.own : Float(4, 4, strides=[4, 1], device=cpu) = cudagraph::own(%y.out)
  return (%y.own {output "y"}, %b2.out {mutation %b})
)";

/// A runtime whose entry is sealed, and the inputs that it is sealed for.
struct Sealed {
  std::unique_ptr<Runtime> runtime = makeRuntime(kEveryKind);
  std::unique_ptr<Runtime> reference = makeReference(kEveryKind);
  Values inputs{at::randn({4, 4}), at::randn({4, 4}), at::randn({4, 4}), 3,
                at::detail::createCPUGenerator(7)};

  Sealed() {
    for (int i = 0; i < 8; ++i) CHECK(step(inputs));
    CHECK(step(inputs, /*replayed=*/true));
  }

  /// True if results, buffer and random state have eager's bits, and the step was `replayed` or not.
  bool step(const Values& given, std::optional<bool> replayed = {}) {
    Values expected = given;
    expected[1] = given[1].toTensor().clone();
    at::Generator generator = given[4].toGenerator();
    const at::Tensor state = generator.get_state();
    const Values results = reference->run("step", expected);
    const at::Tensor after = generator.get_state();
    generator.set_state(state);
    const int64_t replays = runtime->stats().replays;
    const Values found = runtime->run("step", given);
    if (replayed && *replayed != (runtime->stats().replays > replays)) return false;
    return sameBits(found[0].toTensor(), results[0].toTensor()) &&
           sameBits(given[1].toTensor(), expected[1].toTensor()) &&
           sameBits(generator.get_state(), after);
  }
};

}  // namespace

TEST_CASE("a sealed entry does not replay with other inputs than were captured", "[law3]") {
  const struct {
    const char* what;
    std::function<void(Values&)> change;
  } rows[] = {
      {"a parameter at another address", [](Values& v) { v[0] = v[0].toTensor() + 1; }},
      {"a parameter with other strides", [](Values& v) { v[0] = v[0].toTensor().t(); }},
      {"a buffer at another address", [](Values& v) { v[1] = v[1].toTensor() + 1; }},
      {"another number", [](Values& v) { v[3] = 4; }},
      {"another generator", [](Values& v) { v[4] = at::detail::createCPUGenerator(8); }},
      {"a staged input that lies so that kernels round otherwise",
       [](Values& v) {
         v[2] = at::randn({17}).narrow(0, 1, 16).view({4, 4});
       }},
  };
  for (const auto& row : rows) {
    INFO(row.what);
    Sealed sealed;
    Values inputs = sealed.inputs;
    row.change(inputs);
    CHECK(sealed.step(inputs, /*replayed=*/false));
    CHECK(sealed.step(sealed.inputs));
  }
}

TEST_CASE("a sealed entry replays with new values of what was captured", "[law3]") {
  Sealed sealed;
  Values& inputs = sealed.inputs;
  inputs[2] = at::randn({4, 4});
  CHECK(sealed.step(inputs, /*replayed=*/true));
  for (size_t i : {0, 1}) inputs[i].toTensor().normal_();
  CHECK(sealed.step(inputs, true));
  inputs[0].toTensor().set_requires_grad(true);  // kernels do not see it
  CHECK(sealed.step(inputs, true));
  at::Generator generator = inputs[4].toGenerator();
  generator.set_current_seed(99);
  CHECK(sealed.step(inputs, true));
}

TEST_CASE("a sealed entry looks at what is read on the host alone, and at what host nodes made",
          "[law3]") {
  auto runtime = makeRuntime(kHostView);
  const at::Tensor x = at::randn({4, 8});
  const auto step = [&](int64_t row) {
    return runtime->run("step", {x, at::scalar_tensor(row, at::kLong)})[0].toTensor();
  };
  for (int i = 0; i < 8; ++i) CHECK(sameBits(step(1), x[1] * 2 * 3));
  const int64_t before = runtime->stats().replays;
  CHECK(sameBits(step(1), x[1] * 2 * 3));
  CHECK(runtime->stats().replays == before + 2);
  CHECK(sameBits(step(2), x[2] * 2 * 3));
  CHECK_THROWS_WITH(runtime->run("step", {x, at::scalar_tensor(1.0)}),
                    Catch::Contains("user_input \"i\" (input 1 of step): expected dtype Long"));
  CHECK(sameBits(step(1), x[1] * 2 * 3));
}

TEST_CASE("a sealed entry with another number of threads is not replayed", "[law3]") {
  const int threads = at::get_num_threads();
  Sealed sealed;
  at::set_num_threads(threads + 1);
  CHECK(sealed.step(sealed.inputs, /*replayed=*/false));
  at::set_num_threads(threads);
  CHECK(sealed.step(sealed.inputs, /*replayed=*/true));
}

TEST_CASE("a sealed entry that is asked to run uncaptured does") {
  Sealed sealed;
  const int64_t replays = sealed.runtime->stats().replays;
  (void)sealed.runtime->runUncaptured("step", sealed.inputs);
  CHECK(sealed.runtime->stats().replays == replays);
  CHECK(sealed.step(sealed.inputs, /*replayed=*/true));
}

TEST_CASE("a seal is not broken by memory that is given back between steps", "[law4]") {
  Sealed sealed;
  (void)sealed.runtime->device().releaseMemory();
  CHECK(sealed.step(sealed.inputs));
  CHECK(sealed.step(sealed.inputs, /*replayed=*/true));
}

TEST_CASE("a sealed forward and backward do not replay over what somebody holds", "[law5]") {
  ForwardBackward pair;
  const auto replays = [&] { return pair.runtime->stats().replays; };
  for (int i = 0; i < 8; ++i) pair.backward(pair.forward());
  const auto kept = pair.forward();
  const Values saved{kept.got.begin() + 1, kept.got.end()};
  int64_t before = replays();
  const auto next = pair.forward();  // while saved values are held
  CHECK(replays() == before);
  pair.backward(next);
  CHECK(replays() == before);  // what an uncaptured forward saved lies elsewhere
  pair.backward(kept);
  CHECK(replays() == before + 1);
  before = replays();
  CHECK_THROWS_WITH(pair.runtime->run("backward", backwardInputs(kept.got)),
                    Catch::Contains("has overwritten"));
  CHECK(replays() == before);
}
