// Random buffers, degenerate ones too: every plan is accepted by its verifier, every damage is not.

#include "ir/memory/memory_plan.h"

#include "tests/catch.h"

#include <algorithm>
#include <random>

using namespace gravure;

namespace {

class RandomBuffers {
 public:
  explicit RandomBuffers(uint64_t seed) : random_(seed) {}

  int64_t upTo(int64_t bound) {
    return static_cast<int64_t>(random_() % static_cast<uint64_t>(bound));
  }

  /// Every shape of life that the planner treats in a way of its own.
  std::vector<Buffer> make() {
    const int64_t n = 1 + upTo(300);
    const int shape = static_cast<int>(upTo(7));
    const bool equalSizes = upTo(4) == 0;
    std::vector<Buffer> buffers;
    for (int64_t i = 0; i < n; ++i) {
      Buffer b;
      b.bytes = equalSizes ? 4096 : int64_t{1} << upTo(24);
      if (!equalSizes && upTo(2) == 0) b.bytes += upTo(5000);
      switch (shape) {
        case 0: b.begin = i, b.end = i + 1 + upTo(3); break;              // chain
        case 1: b.begin = 0, b.end = n; break;                            // all together
        case 2: b.begin = i, b.end = 2 * n - i; break;                    // stack
        case 3: b.begin = upTo(n), b.end = b.begin + 1 + upTo(n); break;  // anything
        case 4:
          b.begin = upTo(n) * 1000003 - 77, b.end = b.begin + 1 + upTo(1 << 30);
          break;                                                    // sparse
        case 5: b.begin = 5, b.end = 6 + upTo(2); break;            // one position
        default: b.begin = upTo(4), b.end = b.begin + 1 + upTo(4);  // few positions
      }
      buffers.push_back(b);
    }
    std::shuffle(buffers.begin(), buffers.end(), random_);
    return buffers;
  }

 private:
  std::mt19937_64 random_;
};

bool liveTogether(const Buffer& a, const Buffer& b) { return a.begin < b.end && b.begin < a.end; }

/// From the definition, in quadratic time: the oracle for verify().
bool isSound(const MemoryPlan& plan) {
  for (size_t i = 0; i < plan.buffers.size(); ++i) {
    const Buffer& a = plan.buffers[i];
    if (a.offset < 0 || a.offset % plan.alignment != 0 || a.offset + a.bytes > plan.bytes)
      return false;
    for (size_t j = 0; j < i; ++j) {
      const Buffer& b = plan.buffers[j];
      const bool overlap = a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes;
      if (overlap && liveTogether(a, b)) return false;
    }
  }
  return true;
}

/// The largest sum of bytes alive at any begin of a buffer, from the definition.
int64_t slowLoad(const MemoryPlan& plan) {
  int64_t peak = 0;
  for (const Buffer& at : plan.buffers) {
    int64_t live = 0;
    for (const Buffer& b : plan.buffers) {
      const bool alive = b.begin <= at.begin && at.begin < b.end;
      if (alive) live += (b.bytes + plan.alignment - 1) / plan.alignment * plan.alignment;
    }
    peak = std::max(peak, live);
  }
  return peak;
}

}  // namespace

TEST_CASE("plans of random buffers are sound, and as large as LOAD at least") {
  for (uint64_t seed = 0; seed < 1500; ++seed) {
    RandomBuffers random(seed);
    const std::vector<Buffer> buffers = random.make();
    const int64_t alignment = int64_t{1} << random.upTo(10);
    // 0 keeps to the methods for very many buffers.
    const size_t quadraticLimit = seed % 2 == 0 ? 20000 : 0;
    const MemoryPlan plan = planBuffers(buffers, alignment, quadraticLimit);
    CAPTURE(seed, buffers.size(), alignment, quadraticLimit);
    REQUIRE(plan.verify() == "");
    REQUIRE(isSound(plan));
    REQUIRE(plan.load == slowLoad(plan));
    REQUIRE(plan.bytes >= plan.load);
    REQUIRE(plan.bytes % alignment == 0);
    for (size_t i = 0; i < buffers.size(); ++i) {
      REQUIRE(plan.buffers[i].begin == buffers[i].begin);
      REQUIRE(plan.buffers[i].end == buffers[i].end);
      REQUIRE(plan.buffers[i].bytes == buffers[i].bytes);
    }
  }
}

TEST_CASE("many buffers in chunks: placing at the lowest gap stays sound") {
  // Enough for the ordered chunks to split many times.
  std::mt19937_64 random(11);
  for (int round = 0; round < 20; ++round) {
    std::vector<Buffer> buffers;
    for (int i = 0; i < 1200; ++i) {
      Buffer b;
      b.begin = static_cast<int64_t>(random() % 400);
      b.end = b.begin + 1 + static_cast<int64_t>(random() % (round % 2 == 0 ? 12 : 400));
      b.bytes = 1 + static_cast<int64_t>(random() % 100000);
      buffers.push_back(b);
    }
    const MemoryPlan plan = planBuffers(buffers);
    CAPTURE(round);
    REQUIRE(plan.verify() == "");
    REQUIRE(isSound(plan));
  }
}

TEST_CASE("verify agrees with the definition on every damaged plan") {
  int refused = 0;
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    RandomBuffers random(seed);
    MemoryPlan plan = planBuffers(random.make(), 64);
    Buffer& victim = plan.buffers[random.upTo(static_cast<int64_t>(plan.buffers.size()))];
    const Buffer& other = plan.buffers[random.upTo(static_cast<int64_t>(plan.buffers.size()))];
    switch (seed % 6) {
      case 0: victim.offset = other.offset; break;
      case 1: victim.offset = std::max<int64_t>(0, victim.offset - 64); break;
      case 2: victim.offset += 64; break;
      case 3: victim.offset += 1; break;
      case 4: victim.offset = -1; break;
      default: plan.bytes -= 64;
    }
    CAPTURE(seed, seed % 6);
    const bool sound = isSound(plan);
    REQUIRE((plan.verify() == "") == sound);
    refused += !sound;
  }
  // Moving one buffer is harmless now and then; most damage is not.
  CHECK(refused > 1500);
}

TEST_CASE("a life that grows into another's bytes is refused") {
  int clashes = 0;
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    RandomBuffers random(seed);
    MemoryPlan plan = planBuffers(random.make(), 64);
    Buffer& victim = plan.buffers[random.upTo(static_cast<int64_t>(plan.buffers.size()))];
    victim.end += 1 + random.upTo(50);
    plan.load = peakLoad(plan.buffers, plan.alignment);
    CAPTURE(seed);
    const bool sound = isSound(plan);
    REQUIRE((plan.verify() == "") == sound);
    clashes += !sound;
  }
  CHECK(clashes > 100);
}
