// Warm-up as the device sees it: which steps run in its pool, and when that is given back.
#include "tests/unit/device_fixture.h"
#include "tests/unit/law_fixture.h"

using namespace gravure;

namespace {

/// What became of the pool that steps warm up in.
struct PoolEvents {
  int64_t steps = 0;  // in it
  bool inStep = false, exists = false;
  std::vector<int64_t> expected;  // bytes, by step
};

class PoolWatchingDevice final : public DeviceOnHost {
 public:
  explicit PoolWatchingDevice(PoolEvents* events) : events_(events) {}
  void beginWarmUp(int64_t expected) override {
    CHECK_FALSE(events_->inStep);
    ++events_->steps;
    events_->expected.push_back(expected);
    events_->inStep = events_->exists = true;
  }
  void endWarmUp() override { events_->inStep = false; }
  void dropWarmUp() override {
    CHECK_FALSE(events_->inStep);
    events_->exists = false;
  }

 private:
  PoolEvents* events_;
};

struct WatchedPair : ForwardBackward {
  WatchedPair() {
    runtime = std::make_unique<Runtime>(readProgram(kForwardBackward),
                                        std::make_unique<PoolWatchingDevice>(&pool));
  }
  PoolEvents pool;
};

}  // namespace

TEST_CASE("steps run in the warm-up's pool until all entries are captured", "[memory]") {
  WatchedPair pair;
  const auto inPool = [&](auto&& run) {
    const int64_t before = pair.pool.steps;
    run();
    CHECK_FALSE(pair.pool.inStep);
    return pair.pool.steps > before;
  };
  for (int step = 0; step < 6; ++step) {
    CAPTURE(step);
    ForwardBackward::Values values;
    // In the third step the forward waits for the backward, which has run once.
    CHECK(inPool([&] { values = pair.forward(); }) == (step < 3));
    if (step == 0) continue;
    CHECK(inPool([&] { pair.backward(values); }) == (step < 3));
    CHECK(pair.pool.exists == (step < 3));
  }
  CHECK(pair.runtime->stats().captures == 2);
}

TEST_CASE("a backward that has warmed up before its forward goes on in the pool", "[memory]") {
  WatchedPair pair;
  ForwardBackward::Values values = pair.forward();
  pair.backward(values);
  pair.backward(values);
  values = pair.forward();  // has warmed up now, too; the arena comes with the next one
  const int64_t before = pair.pool.steps;
  pair.backward(values);
  CHECK(pair.pool.steps == before + 1);
  CHECK(pair.pool.exists);
  values = pair.forward();
  CHECK(pair.pool.steps == before + 1);
  CHECK_FALSE(pair.pool.exists);
  pair.backward(values);
  CHECK(pair.runtime->stats().captures == 2);
}

TEST_CASE("where an entry never comes, the pool is given back, and the others are captured",
          "[memory]") {
  WatchedPair pair;
  for (int step = 0; step < 8; ++step) {
    CAPTURE(step);
    (void)pair.forward();
    CHECK(pair.pool.exists == (step < 3));
  }
  CHECK(pair.pool.steps == 3);
  CHECK(pair.runtime->stats().captures == 1);
  for (int step = 0; step < 4; ++step) pair.backward(pair.forward());
  CHECK_FALSE(pair.pool.exists);
  CHECK(pair.pool.steps == 3 + 2);
  CHECK(pair.runtime->stats().captures == 1 + 2);  // both, in one plan
}

TEST_CASE("from the second step on the pool is told what the step takes at once", "[memory]") {
  WatchedPair pair;
  for (int step = 0; step < 4; ++step) pair.backward(pair.forward());
  REQUIRE(pair.pool.expected.size() == 4);  // two steps
  CHECK(pair.pool.expected[0] == 0);
  CHECK(pair.pool.expected[1] == Device::kStepGoesOn);
  CHECK(pair.pool.expected[2] == pair.runtime->stats().arenaLoad);
  CHECK(pair.pool.expected[3] == Device::kStepGoesOn);
}
