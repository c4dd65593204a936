// Each call to a driver or an allocator that a life of programs makes fails once.
#include "runtime/device/arena_session.h"
#include "runtime/device/call_faults.h"
#include "runtime/device/step_scope.h"
#include "tests/unit/law_fixture.h"

#include <set>

using namespace gravure;

namespace {

using Values = std::vector<c10::IValue>;

/// A training step, and a forward with its backward: warmed up, planned, captured and replayed on shared
/// pages; with results that are held, memory given back and taken again, and parameters that move.
class Life {
 public:
  explicit Life(bool reference)
      : step_(reference ? makeReference(kTrainingStep) : makeRuntime(kTrainingStep)),
        pair_(reference ? makeReference(kForwardBackward) : makeRuntime(kForwardBackward)),
        reference_(reference) {}

  /// What its runs return, in order; nothing for one that failed, whose error must be the injected one.
  std::vector<Values> live() {
    for (round_ = 0; round_ < kRounds; ++round_) {
      held_.clear();
      if (round_ == 5 && !reference_) (void)step_->device().releaseMemory();
      trainingStep();
      forwardAndBackward();
    }
    return std::move(all_);
  }
  int64_t errors() const { return errors_; }
  int64_t replays() const { return step_->stats().replays + pair_->stats().replays; }

 private:
  static constexpr int kRounds = 12;

  static at::Tensor drawn(at::IntArrayRef sizes, int seed) {
    at::Generator generator = at::detail::createCPUGenerator(seed);
    return at::randn(sizes, generator);
  }

  /// Another tensor in the rounds in which `moves`.
  at::Tensor& parameter(at::Tensor& kept, at::IntArrayRef sizes, bool moves) {
    const at::Tensor values = drawn(sizes, 1);
    if (kept.defined() && !moves) return kept;
    kept = values.clone();
    return kept;
  }

  Values attempt(Runtime& runtime, const char* entry, Values inputs) {
    at::manual_seed(100 + round_);
    Values got;
    try {
      got = runtime.run(entry, std::move(inputs));
    } catch (const c10::Error& error) {
      ++errors_;
      CHECK_THAT(error.what_without_backtrace(), Catch::Contains("injected fault at"));
      CHECK_FALSE(reference_);
    }
    all_.emplace_back();
    for (const c10::IValue& value : got) all_.back().emplace_back(value.toTensor().clone());
    return got;
  }

  void trainingStep() {
    const at::Tensor w = parameter(w_, {8, 4}, round_ == 6), x = drawn({16, 4}, 10 + round_);
    b_ = parameter(b_, {8}, round_ > 7);
    b_.fill_(round_);
    Values got = attempt(*step_, "step", {w, b_, x});
    if (!got.empty()) all_.back().emplace_back(b_.clone());
    if (round_ == 4) held_ = std::move(got);
  }

  void forwardAndBackward() {
    const at::Tensor w = parameter(v_, {4, 4}, false), x = drawn({8, 4}, 30 + round_);
    const Values saved = attempt(*pair_, "forward", {w, x});
    if (saved.empty()) {
      all_.emplace_back();
      return;
    }
    (void)attempt(*pair_, "backward", backwardInputs(saved));
  }

  std::unique_ptr<Runtime> step_, pair_;
  const bool reference_;
  int round_ = 0;
  int64_t errors_ = 0;
  at::Tensor w_, b_, v_;
  Values held_;
  std::vector<Values> all_;
};

}  // namespace

TEST_CASE(
    "each call that may fail fails once: results are right or the error is clear, and nothing "
    "is left",
    "[law6]") {
  REQUIRE(liveHostSlabs() == 0);
  const std::vector<Values> expected = Life(/*reference=*/true).live();
  CallFaults::start(0);
  int64_t replays = 0;
  {
    Life whole(/*reference=*/false);
    (void)whole.live();
    CHECK(whole.errors() == 0);
    replays = whole.replays();
  }
  const int64_t passes = CallFaults::stop();
  CHECK(passes > 100);
  CHECK(replays > 20);
  std::set<std::string> failed;
  int64_t errors = 0;
  for (int64_t pass = 1; pass <= passes; ++pass) {
    CallFaults::start(pass);
    std::vector<Values> got;
    {
      Life life(/*reference=*/false);
      got = life.live();
      errors += life.errors();
      CHECK(life.errors() <= 1);
    }
    (void)CallFaults::stop();
    CAPTURE(pass, CallFaults::failed());
    CHECK(CallFaults::failed() != "");
    failed.insert(CallFaults::failed());
    bool right = got.size() == expected.size();
    for (size_t i = 0; right && i < got.size(); ++i)
      right = got[i].empty() || sameBits(got[i], expected[i]);
    CHECK(right);
    CHECK(liveHostSlabs() == 0);
    CHECK(hostPages().bytes() == 0);
    CHECK(ArenaSession::current() == nullptr);
    CHECK_FALSE(StepScope::isInside());
  }
  CHECK(errors > 0);
  for (const char* what : {"the making of pages", "the mapping of pages", "the unmapping of pages",
                           "an allocation of PyTorch's", "the begin of a capture", "a launch"}) {
    CAPTURE(what);
    CHECK(failed.count(what) == 1);
  }
  // A process in which all of this failed is as good as new.
  SideBySide pair;
  for (int step = 0; step < 4; ++step) CHECK(pair.step());
  CHECK(countIn(*pair.runtime, PartitionState::Captured) == 2);
  CHECK(remarksOf(*pair.runtime) == "");
}
