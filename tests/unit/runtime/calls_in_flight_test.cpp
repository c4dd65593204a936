// Several calls of one program before their backwards: an instance for each, on pages that cost what is held.
#include "runtime/calls_in_flight.h"
#include "tests/unit/shared_pages_fixture.h"

#include <ATen/Parallel.h>
#include <llvm/Support/raw_ostream.h>

#include <atomic>
#include <thread>

using namespace gravure;

namespace {

constexpr int64_t kRows = 40'000;  // 1.4 MiB are held from a forward to its backward

std::string widened(const std::string& from, const std::string& to) {
  // The gradient is as large as all that is saved.
  return replaced(R"(gravure 1
graph forward(%w : Float(4096, strides=[1], device=cpu) {parameter "w"}, %x : Float(4096, strides=[1], device=cpu) {user_input "x"}):
  %xs : Float(4096, strides=[1], device=cpu) = cudagraph::stage(%x)
  %s.out : Float(device=cpu) = cudagraph::launch[index=0, tags=["static: parameter", "staged: user input"]](%w, %xs)
    block0(%w.0 : Float(4096, strides=[1], device=cpu), %xs.0 : Float(4096, strides=[1], device=cpu)):
      %a : Float(4096, strides=[1], device=cpu) = aten::mul.Tensor(%w.0, %xs.0)
      %s : Float(device=cpu) = aten::sum(%a)
      -> (%s)
  %s.own : Float(device=cpu) = cudagraph::own(%s.out)
  return (%s.own {loss}, %xs {saved "x"})
graph backward(%x : Float(4096, strides=[1], device=cpu) {saved "x"}, %g : Float(device=cpu) {tangent "loss"}):
  %gs : Float(device=cpu) = cudagraph::stage(%g)
  %gw.out : Float(4096, strides=[1], device=cpu) = cudagraph::launch[index=0, tags=["static: saved value", "staged: tangent"]](%x, %gs)
    block0(%x.0 : Float(4096, strides=[1], device=cpu), %gs.0 : Float(device=cpu)):
      %gw : Float(4096, strides=[1], device=cpu) = aten::mul.Tensor(%x.0, %gs.0)
      -> (%gw)
  %gw.own : Float(4096, strides=[1], device=cpu) = cudagraph::own(%gw.out)
  return (%gw.own {gradient "w"})
)",
                  from, to);
}

/// A loop of `calls` forwards and then their backwards, of instances beside the uncaptured path.
struct Loop {
  explicit Loop(std::string text, std::vector<at::Tensor> parameters, int64_t rows)
      : text(std::move(text)), rows(rows), parameters(std::move(parameters)),
        reference(makeReference(this->text)) {
    at::set_num_threads(1);  // what it computes is small
  }

  std::vector<c10::IValue> forwardInputs() const {
    const at::Tensor x = rows > 0 ? at::randn({rows, 4}) : at::randn(parameters[0].sizes());
    return {parameters[0], x};
  }
  static std::vector<c10::IValue> backwardInputs(const std::vector<c10::IValue>& results) {
    std::vector<c10::IValue> inputs(results.begin() + 1, results.end());
    inputs.emplace_back(at::ones({}));
    return inputs;
  }

  static void add(at::Tensor& sum, const at::Tensor& gradient) {
    if (sum.defined()) {
      sum.add_(gradient);
    } else {
      sum = gradient;
    }
  }

  /// True if losses and the sum of gradients have the reference's bits. `order`: of the backwards.
  bool step(const std::vector<size_t>& order) {
    gradient = at::Tensor();
    at::Tensor expected;
    std::vector<std::vector<c10::IValue>> got, wanted;
    bool same = true;
    for (size_t i = 0; i < order.size(); ++i) {
      const auto inputs = forwardInputs();
      const at::Tensor state = rngState();
      wanted.push_back(reference->run("forward", inputs));
      setRngState(state);
      got.push_back(instances.run("forward", inputs));
      same &= sameBits(got.back(), wanted.back());
    }
    most = std::max(most, hostPages().bytes());
    for (const size_t i : order) {
      same &= sameBits(got[i], wanted[i]);
      auto inputs = backwardInputs(got[i]);
      got[i].clear();
      const auto one = instances.run("backward", std::move(inputs));
      const auto other = reference->run("backward", backwardInputs(wanted[i]));
      most = std::max(most, hostPages().bytes());
      // As autograd adds them up: the first is kept as it is, the others are added to it.
      add(gradient, one[0].toTensor());
      add(expected, other[0].toTensor());
    }
    return same && sameBits(gradient, expected);
  }
  bool steps(int count, size_t calls) {
    std::vector<size_t> order;
    for (size_t i = 0; i < calls; ++i) order.push_back(i);
    for (int i = 0; i < count; ++i) {
      if (!step(order)) return false;
    }
    return true;
  }
  int64_t sum(int64_t RuntimeStats::*which) {
    int64_t all = 0;
    for (size_t i = 0; i < instances.count(); ++i) all += instances.at(i).stats().*which;
    return all;
  }

  const std::string text;
  const int64_t rows;
  const std::vector<at::Tensor> parameters;
  std::unique_ptr<Runtime> reference;
  CallsInFlight instances{readProgram(text), [] { return makeHostDevice(true); }};
  at::Tensor gradient;  // as `.grad` holds it, until the next step
  int64_t most = 0;     // bytes of pages
};

Loop ofRows(int64_t rows) { return Loop(forwardBackward(rows), {at::randn({4, 4})}, rows); }

}  // namespace

TEST_CASE("d calls in flight take what they hold, and the transients of one", "[memory]") {
  for (const size_t calls : {1, 2, 4, 8}) {
    CAPTURE(calls);
    REQUIRE(hostPages().bytes() == 0);
    Loop loop = ofRows(kRows);
    REQUIRE(loop.steps(5, calls));
    CHECK(loop.instances.count() == calls);
    const RuntimeStats& stats = loop.instances.at(0).stats();
    CHECK(stats.heldBytes >= 36 * kRows);
    const auto others = static_cast<int64_t>(calls - 1);
    const double least = static_cast<double>(others * stats.heldBytes + stats.arenaLoad);
    CHECK(static_cast<double>(hostPages().bytes()) <= 1.02 * least);
    CHECK(static_cast<double>(hostPages().bytes()) >= 0.999 * least);
  }
}

TEST_CASE("gradients of calls in flight share pages once they are added up", "[memory]") {
  for (const size_t calls : {2, 4, 8}) {
    CAPTURE(calls);
    REQUIRE(hostPages().bytes() == 0);
    const std::string size = "100001";
    Loop loop(widened("4096", size), {at::randn({100'001})}, 0);
    REQUIRE(loop.steps(5, calls));
    const RuntimeStats& stats = loop.instances.at(0).stats();
    const auto others = static_cast<int64_t>(calls - 1);
    // The first gradient is held, and each of the others comes beside it.
    const int64_t least = others * stats.heldBytes + stats.arenaLoad + loop.gradient.nbytes();
    CHECK(static_cast<double>(hostPages().bytes()) <= 1.02 * static_cast<double>(least));
  }
}

TEST_CASE("an instance is captured in the first call that needs it", "[law1]") {
  Loop loop = ofRows(40);
  REQUIRE(loop.steps(4, 1));
  const int64_t before = loop.sum(&RuntimeStats::uncapturedSteps);
  CHECK(before == 4);  // two forwards, two backwards
  REQUIRE(loop.steps(4, 3));
  CHECK(loop.instances.count() == 3);
  CHECK(loop.sum(&RuntimeStats::uncapturedSteps) == before);
  CHECK(loop.sum(&RuntimeStats::captures) == 3 * 2);
}

TEST_CASE("which backward belongs to which forward is known by what it is given", "[law1]") {
  Loop loop = ofRows(40);
  REQUIRE(loop.steps(3, 3));
  const int64_t before = loop.sum(&RuntimeStats::uncapturedSteps);
  for (const std::vector<size_t>& order :
       {std::vector<size_t>{2, 0, 1}, {1, 2, 0}, {0, 2, 1}, {2, 1, 0}}) {
    CHECK(loop.step(order));
  }
  CHECK(loop.sum(&RuntimeStats::uncapturedSteps) == before);
  // A forward whose backward never comes.
  (void)loop.instances.run("forward", loop.forwardInputs());
  CHECK(loop.step({1, 0, 2}));
  CHECK(loop.sum(&RuntimeStats::uncapturedSteps) == before);
}

TEST_CASE("the caller may see to it himself which instance a call uses", "[law1]") {
  const std::string text = forwardBackward(40);
  auto first = makeRuntime(text), second = makeRuntime(text), reference = makeReference(text);
  second->warmUpWith(*first);
  const at::Tensor w = at::randn({4, 4});
  for (int step = 0; step < 6; ++step) {
    std::vector<std::vector<c10::IValue>> got, expected;
    for (Runtime* runtime : {first.get(), second.get()}) {
      const at::Tensor x = at::randn({40, 4}), state = rngState();
      expected.push_back(reference->run("forward", {w, x}));
      setRngState(state);
      got.push_back(runtime->run("forward", {w, x}));
    }
    CHECK(first->hasSaved("backward", backwardInputs(got[0])) == (step > 0));
    CHECK_FALSE(first->hasSaved("backward", backwardInputs(got[1])));
    CHECK(sameBits(first->run("backward", backwardInputs(got[0])),
                   reference->run("backward", backwardInputs(expected[0]))));
    CHECK(sameBits(second->run("backward", backwardInputs(got[1])),
                   reference->run("backward", backwardInputs(expected[1]))));
  }
  CHECK(first->stats().uncapturedSteps + second->stats().uncapturedSteps == 4);
}

TEST_CASE("an instance beyond the last runs uncaptured, and harms no other one", "[law5][law11]") {
  const std::string text = forwardBackward(40);
  CallsInFlight instances(
      readProgram(text), [] { return makeHostDevice(true); }, {}, 2);
  auto reference = makeReference(text);
  const at::Tensor w = at::randn({4, 4});
  for (int step = 0; step < 5; ++step) {
    std::vector<std::vector<c10::IValue>> got, expected;
    for (int i = 0; i < 3; ++i) {
      const at::Tensor x = at::randn({40, 4}), state = rngState();
      expected.push_back(reference->run("forward", {w, x}));
      setRngState(state);
      got.push_back(instances.run("forward", {w, x}));
    }
    for (size_t i = 0; i < 3; ++i) {
      CHECK(sameBits(got[i], expected[i]));
      auto inputs = backwardInputs(got[i]);
      got[i].clear();
      CHECK(sameBits(instances.run("backward", std::move(inputs)),
                     reference->run("backward", backwardInputs(expected[i]))));
    }
  }
  CHECK(instances.count() == 2);
  CHECK(instances.at(1).remarks().count("saved-values-held") == 1);
}

TEST_CASE(
    "where there is no memory for one more in flight it runs uncaptured, and says what is missing",
    "[law6][law11]") {
  REQUIRE(hostPages().bytes() == 0);
  Loop loop = ofRows(kRows);
  REQUIRE(loop.steps(3, 1));
  limitHostMemory(hostPages().bytes() + (int64_t{2} << 20));  // for one more, and not for two
  REQUIRE(loop.steps(4, 4));
  limitHostMemory(int64_t{1} << 40);
  bool said = false;
  for (size_t i = 0; i < loop.instances.count(); ++i)
    said |= remarksOf(loop.instances.at(i)).find("missing") != std::string::npos;
  CHECK(said);
  REQUIRE(loop.steps(40, 4));  // it is tried again
  const int64_t before = loop.sum(&RuntimeStats::uncapturedSteps);
  REQUIRE(loop.steps(3, 4));
  CHECK(loop.sum(&RuntimeStats::uncapturedSteps) == before);
}

TEST_CASE("a backward whose forward's program was shut down is a clear error", "[law5]") {
  Loop loop = ofRows(40);
  REQUIRE(loop.steps(4, 2));
  const auto held = loop.instances.run("forward", loop.forwardInputs());
  const auto bits = held[1].toTensor().clone();
  loop.instances.at(0).shutdown();
  CHECK(sameBits(held[1].toTensor(), bits));  // what is held is the holder's
  CHECK_THROWS_WITH(loop.instances.at(0).run("backward", Loop::backwardInputs(held)),
                    Catch::Contains("was shut down"));
  // Another one takes it: the values are there.
  const auto got = loop.instances.at(1).run("backward", Loop::backwardInputs(held));
  CHECK(sameBits(got, loop.reference->run("backward", Loop::backwardInputs(held))));
}

TEST_CASE("programs of other texts learn nothing from each other's warm-ups", "[law1]") {
  SavingPair one(40), other(48);
  SideBySide apart;
  other.runtime->warmUpWith(*apart.runtime);  // nothing in common
  for (int step = 0; step < 3; ++step) {
    CHECK(apart.step());
    (void)one.backward(one.forward());
  }
  for (int step = 0; step < 4; ++step) (void)other.backward(other.forward());
  CHECK(other.runtime->stats().uncapturedSteps == 4);
}

TEST_CASE("what one size taught is not learnt again", "[law1]") {
  SavingPair first(40);
  for (int step = 0; step < 4; ++step) (void)first.backward(first.forward());
  CHECK(first.runtime->stats().uncapturedSteps == 4);
  SavingPair taught(4000), alone(4000);
  taught.runtime->learnFrom(*first.runtime);
  for (int step = 0; step < 5; ++step) {
    (void)taught.backward(taught.forward());
    (void)alone.backward(alone.forward());
  }
  CHECK(taught.runtime->stats().uncapturedSteps == 2);  // one forward, one backward
  CHECK(alone.runtime->stats().uncapturedSteps == 4);
  CHECK(taught.runtime->stats().arenaBytes == alone.runtime->stats().arenaBytes);
  // From one that knows nothing yet nothing is learnt.
  SavingPair untaught(400), unknowing(44);
  untaught.runtime->learnFrom(*unknowing.runtime);
  for (int step = 0; step < 5; ++step) (void)untaught.backward(untaught.forward());
  CHECK(untaught.runtime->stats().uncapturedSteps == 4);
}

namespace {

std::string planText(const Runtime& runtime) {
  std::string text;
  llvm::raw_string_ostream os(text);
  runtime.memoryPlan().print(os);
  return text;
}

/// A runtime and further ones of its program, beside the uncaptured path.
struct Instances {
  explicit Instances(size_t count, const std::string& text = forwardBackward(40))
      : reference(makeReference(text)) {
    at::set_num_threads(1);
    all.push_back(makeRuntime(text));
    while (all.size() < count) add();
  }

  Runtime& add() {
    all.push_back(std::make_unique<Runtime>(*all.front(), makeHostDevice()));
    return *all.back();
  }
  /// A forward and its backward of one of them. True if both have the reference's bits; `keep` gets the
  /// gradient, which else is dropped.
  bool step(Runtime& runtime, at::Tensor* keep = nullptr) const { return step(runtime, w, keep); }
  bool step(Runtime& runtime, const at::Tensor& weight, at::Tensor* keep = nullptr) const {
    const at::Tensor x = at::randn({40, 4}), state = rngState();
    const auto expected = reference->run("forward", {weight, x});
    setRngState(state);
    auto got = runtime.run("forward", {weight, x});
    const bool same = sameBits(got, expected);
    auto inputs = Loop::backwardInputs(got);
    got.clear();
    const auto gradient = runtime.run("backward", std::move(inputs));
    if (keep) *keep = gradient[0].toTensor();
    return same && sameBits(gradient, reference->run("backward", Loop::backwardInputs(expected)));
  }
  bool steps(int count, Runtime& runtime) const { return steps(count, runtime, w); }
  bool steps(int count, Runtime& runtime, const at::Tensor& weight) const {
    for (int i = 0; i < count; ++i) {
      if (!step(runtime, weight)) return false;
    }
    return true;
  }

  const at::Tensor w = at::randn({4, 4});
  std::unique_ptr<Runtime> reference;
  std::vector<std::unique_ptr<Runtime>> all;
};

/// Two that warm up together, behind four steps of the first one and `count` of the second one.
struct TwoReplaying : Instances {
  explicit TwoReplaying(int count) : Instances(2) {
    second.warmUpWith(first);
    REQUIRE(steps(4, first));
    REQUIRE(steps(count, second));
  }
  Runtime &first = *all[0], &second = *all[1];
};

}  // namespace

TEST_CASE("a further runtime of a program shares what no step changes", "[law1]") {
  Instances two(2);
  Runtime &first = *two.all[0], &second = *two.all[1];
  CHECK(&first.program() == &second.program());  // not read again
  second.warmUpWith(first);
  REQUIRE(two.steps(4, first));
  REQUIRE(two.steps(2, second));
  CHECK(second.stats().uncapturedSteps == 0);
  CHECK(&first.memoryPlan() == &second.memoryPlan());  // nor laid out again
  // Of another reading of the text recordings are good, and its layout is its own.
  auto apart = makeRuntime(forwardBackward(40));
  apart->warmUpWith(first);
  REQUIRE(two.steps(2, *apart));
  CHECK(apart->stats().uncapturedSteps == 0);
  CHECK(&apart->memoryPlan() != &first.memoryPlan());
  CHECK(apart->memoryPlan().bytes == first.memoryPlan().bytes);
}

TEST_CASE("addresses, captures, remarks and counts are each instance's own", "[law3]") {
  Instances two(2);
  Runtime &first = *two.all[0], &second = *two.all[1];
  REQUIRE(two.steps(4, first));
  CHECK(second.stats().steps == 0);
  CHECK(countIn(second, PartitionState::Cold, "forward") == 1);
  // It has not been told that they warm up together.
  REQUIRE(two.steps(4, second));
  CHECK(second.stats().uncapturedSteps == first.stats().uncapturedSteps);
  const auto one = first.run("forward", {two.w, at::randn({40, 4})});
  const auto other = second.run("forward", {two.w, at::randn({40, 4})});
  for (size_t o = 1; o < one.size(); ++o)
    CHECK(one[o].toTensor().const_data_ptr() != other[o].toTensor().const_data_ptr());
  CHECK(first.hasSaved("backward", Loop::backwardInputs(one)));
  CHECK_FALSE(second.hasSaved("backward", Loop::backwardInputs(one)));
}

TEST_CASE("what one instance does with its results is not the others'", "[law5]") {
  TwoReplaying two(4);
  Runtime &first = two.first, &second = two.second;
  at::Tensor held;
  REQUIRE(two.step(first, &held));
  const at::Tensor bits = held.clone();
  REQUIRE(two.step(first));  // held: its gradient is a copy from now on
  CHECK(first.remarks().count("result-held") == 1);
  REQUIRE(two.steps(4, second));
  CHECK(second.remarks().count("result-held") == 0);
  CHECK(second.stats().copiedResultBytes < first.stats().copiedResultBytes + 1);
  at::Tensor lent, again;
  REQUIRE(two.step(second, &lent));
  const void* const address = lent.const_data_ptr();
  lent = at::Tensor();
  REQUIRE(two.step(second, &again));
  CHECK(again.const_data_ptr() == address);  // still lent
  CHECK(sameBits(held, bits));
}

TEST_CASE("an instance outlives the runtime that it was made of", "[law9]") {
  Instances two(1);
  REQUIRE(two.steps(4, *two.all[0]));
  two.all[0]->shutdown();
  Runtime& second = two.add();
  REQUIRE(two.steps(2, second));
  two.all[0].reset();
  REQUIRE(two.steps(4, second));
  CHECK(countIn(second, PartitionState::Captured, "forward") == 1);
}

TEST_CASE("a fault in one instance is not the others'", "[law6]") {
  Instances two(2);
  Runtime &first = *two.all[0], &second = *two.all[1];
  second.warmUpWith(first);
  REQUIRE(two.steps(2, first));
  second.device().injectFault(FaultPoint::CaptureCall, 1);
  REQUIRE(two.steps(1, second));
  CHECK(countIn(second, PartitionState::Quarantined, "forward") == 1);
  REQUIRE(two.steps(3, first));
  CHECK(countIn(first, PartitionState::Captured, "forward") == 1);
}

TEST_CASE("instances run, and are made, on threads of their own", "[law12]") {
  at::set_num_threads(1);
  const std::string text = widened("4096", "64");  // it draws no random numbers
  auto first = makeRuntime(text), reference = makeReference(text);
  const at::Tensor w = at::randn({64}), x = at::randn({64});
  const auto expected = reference->run("forward", {w, x});
  const auto gradient = reference->run("backward", Loop::backwardInputs(expected));
  std::atomic<int> wrong = 0;
  const auto step = [&](Runtime& runtime) {
    auto got = runtime.run("forward", {w, x});
    wrong += !sameBits(got, expected);
    auto inputs = Loop::backwardInputs(got);
    got.clear();
    wrong += !sameBits(runtime.run("backward", std::move(inputs)), gradient);
  };
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      at::set_num_threads(1);
      for (int made = 0; made < 5; ++made) {
        Runtime own(*first, makeHostDevice());
        if (t % 2 == 0) own.warmUpWith(*first);
        for (int i = 0; i < 5; ++i) step(own);
      }
    });
  }
  for (int i = 0; i < 40; ++i) step(*first);  // while others are made of it
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
}

TEST_CASE("a further runtime is for the same kind of device and the same policy of results") {
  auto first = makeRuntime(forwardBackward(40));
  RuntimeOptions copied;
  copied.results = ResultPolicy::Copied;
  CHECK_THROWS_WITH(Runtime(*first, makeHostDevice(), copied),
                    Catch::Contains("another policy of results"));
  CHECK_THROWS_WITH(Runtime(*first, nullptr), Catch::Contains("needs a device"));
}

TEST_CASE("what is held in one instance alone has its arena alone laid out otherwise", "[law5]") {
  TwoReplaying two(2);
  Runtime &first = two.first, &second = two.second;
  REQUIRE(&first.memoryPlan() == &second.memoryPlan());
  const std::string before = planText(second);
  at::Tensor held;
  REQUIRE(two.step(first, &held));
  REQUIRE(two.steps(24, first));
  REQUIRE(first.remarks().count("arena-anew") == 1);
  CHECK(&first.memoryPlan() != &second.memoryPlan());
  CHECK(planText(second) == before);
  REQUIRE(two.steps(4, second));
}

TEST_CASE("instances whose inputs come to be laid out otherwise plan for themselves", "[law3]") {
  TwoReplaying two(2);
  Runtime &first = two.first, &second = two.second;
  const at::Tensor across = two.w.t().contiguous().t();
  for (Runtime* each : {&first, &second}) {
    REQUIRE(two.steps(12, *each, across));
    CHECK(each->remarks().count("layout-anew") == 1);
    CHECK(each->stats().replays > 0);
  }
  // What each has recorded since is its own, and so is the layout.
  CHECK(&first.memoryPlan() != &second.memoryPlan());
}
