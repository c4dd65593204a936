// A device without memory, or without virtual memory: steps stay right, and it is said.
#include "tests/unit/law_fixture.h"
#include "tests/unit/shared_pages_fixture.h"

#include <cstdlib>
#include <thread>

using namespace gravure;

namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

/// The host device has `bytes` more than its arenas take now.
struct Limited {
  explicit Limited(int64_t bytes) { limitHostMemory(hostPages().bytes() + bytes); }
  ~Limited() { limitHostMemory(int64_t{1} << 40); }
};

struct WithoutVirtualMemory {
  WithoutVirtualMemory() { setenv("GRAVURE_NO_VIRTUAL_MEMORY", "1", 1); }
  ~WithoutVirtualMemory() { unsetenv("GRAVURE_NO_VIRTUAL_MEMORY"); }
};

}  // namespace

TEST_CASE("without memory for the arena steps run uncaptured, and it is tried again",
          "[law6][law11]") {
  SideBySide pair;
  {
    const Limited limited(0);
    for (int step = 0; step < 12; ++step) CHECK(pair.step());
    CHECK(pair.runtime->stats().captures == 0);
    CHECK(pair.runtime->remarks().count("no-arena") == 1);
    CHECK_THAT(remarksOf(*pair.runtime), Catch::Contains("1 MiB of them are missing") &&
                                             Catch::Contains("steps run uncaptured"));
  }
  for (int step = 12; step < 24; ++step) CHECK(pair.step());
  CHECK(pair.runtime->stats().captures == 2);
  CHECK(pair.runtime->stats().uncapturedSteps == 20);  // 2 + 18: tried again at step 20
  CHECK(pair.runtime->remarks().all().size() == 1);
}

TEST_CASE("a capture that runs out of memory is quarantined, and says how much was missing",
          "[law6][law11]") {
  for (FaultPoint point :
       {FaultPoint::CaptureBegin, FaultPoint::CaptureCall, FaultPoint::CaptureEnd}) {
    CAPTURE(static_cast<int>(point));
    SideBySide pair;
    for (int step = 0; step < 2; ++step) CHECK(pair.step());
    pair.runtime->device().injectFault(point, 1, 300 * kMiB);
    for (int step = 2; step < 6; ++step) CHECK(pair.step());
    CHECK(countIn(*pair.runtime, PartitionState::Quarantined) == 1);
    CHECK(countIn(*pair.runtime, PartitionState::Captured) == 1);
    CHECK_THAT(remarksOf(*pair.runtime),
               Catch::Contains("capture-failed") && Catch::Contains("300 MiB of them are missing"));
  }
}

TEST_CASE("memory that another program took is waited for, and said", "[law6][law11]") {
  SavingPair a(3000), b(9000);
  for (int step = 0; step < 4; ++step) {
    (void)a.backward(a.forward());
    (void)b.backward(b.forward());
  }
  CHECK(b.runtime->device().releaseMemory() > 0);
  {
    const Limited limited(a.runtime->stats().arenaBytes + (64 << 10));
    for (int step = 0; step < 4; ++step) {
      (void)a.backward(a.forward());
      (void)b.backward(b.forward());
    }
    CHECK(remarksOf(*a.runtime) == "");
    CHECK_THAT(remarksOf(*b.runtime),
               Catch::Contains("no-arena") && Catch::Contains("MiB of them are missing"));
  }
  for (int step = 0; step < 20; ++step) (void)b.backward(b.forward());
  const int64_t uncaptured = b.runtime->stats().uncapturedSteps;
  for (int step = 0; step < 4; ++step) (void)b.backward(b.forward());
  CHECK(b.runtime->stats().uncapturedSteps == uncaptured);
  CHECK(b.runtime->stats().captures == 2);
}

TEST_CASE("required captures make it an error that there is no memory", "[law6]") {
  const Limited limited(0);
  RuntimeOptions options;
  options.requireCapture = true;
  SideBySide pair(options);
  for (int step = 0; step < 2; ++step) CHECK(pair.step());
  CHECK_THROWS_WITH(pair.step(), Catch::Contains("no memory for the arena") &&
                                     Catch::Contains("MiB of them are missing"));
}

TEST_CASE("without virtual memory each program has an arena of its own", "[memory][law5]") {
  REQUIRE(liveHostSlabs() == 0);
  std::vector<c10::IValue> kept;
  at::Tensor bits;
  {
    const WithoutVirtualMemory without;
    SideBySide pair;
    std::vector<std::unique_ptr<SavingPair>> frames;
    for (int64_t rows : {3000, 1000}) frames.push_back(std::make_unique<SavingPair>(rows));
    for (int step = 0; step < 6; ++step) {
      CAPTURE(step);
      CHECK(pair.step());
      auto first = frames[0]->forward();
      auto second = frames[1]->forward();
      (void)frames[1]->backward(std::move(second));
      (void)frames[0]->backward(std::move(first));
    }
    CHECK(hostPages().bytes() == 0);
    CHECK(hostBlocks().arenas() == 3);
    CHECK(hostBlocks().contains(pair.last[1].toTensor().const_data_ptr()));
    CHECK(inHostArena(pair.last[1].toTensor().const_data_ptr()));
    CHECK(countIn(*pair.runtime, PartitionState::Captured) == 2);
    CHECK(pair.runtime->remarks().count("arena-unshared") == 1);
    CHECK(pair.runtime->remarks().all().size() == 1);
    CHECK_THAT(remarksOf(*pair.runtime), Catch::Contains("GRAVURE_NO_VIRTUAL_MEMORY is set"));
    CHECK(pair.runtime->device().releaseMemory() == 0);
    CHECK(pair.step());
    kept = pair.last;
    bits = kept[1].toTensor().clone();
  }
  CHECK(hostBlocks().arenas() == 1);
  CHECK(sameBits(kept[1].toTensor(), bits));
  std::thread([&] { kept.clear(); }).join();
  CHECK(liveHostSlabs() == 0);
}
