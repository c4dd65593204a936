// The programs of a device lie on the same pages, in the bits of the uncaptured path.
#include "tests/unit/device_fixture.h"
#include "tests/unit/shared_pages_fixture.h"

#include <ATen/Parallel.h>

#include <sys/wait.h>
#include <thread>
#include <unistd.h>

using namespace gravure;

namespace {

int64_t arenaBytes(const SavingPair& pair) { return pair.runtime->stats().arenaBytes; }

}  // namespace

TEST_CASE("training and evaluation at several sizes take the memory of the largest", "[memory]") {
  REQUIRE(hostPages().bytes() == 0);
  std::vector<std::unique_ptr<SavingPair>> pairs;
  for (int64_t rows : {3000, 1000, 9000, 2000}) pairs.push_back(std::make_unique<SavingPair>(rows));
  int64_t sum = 0, largest = 0;
  for (int step = 0; step < 6; ++step) {
    for (auto& pair : pairs) (void)pair->backward(pair->forward());
  }
  for (auto& pair : pairs) {
    sum += arenaBytes(*pair);
    largest = std::max(largest, arenaBytes(*pair));
    CHECK(remarksOf(*pair->runtime) == "");
    CHECK(pair->runtime->stats().captures == 2);
    CHECK(pair->runtime->stats().uncapturedSteps == 4);
  }
  CHECK(sum > largest + (300 << 10));
  CHECK(hostPages().bytes() <= largest + (1 << 20));
  CHECK(hostPages().bytes() < sum);
  pairs.clear();
  CHECK(hostPages().bytes() == 0);
}

TEST_CASE("frames nest like a stack: what one saves is apart from all of the others", "[memory]") {
  std::vector<std::unique_ptr<SavingPair>> frames;
  for (int64_t rows : {9000, 4000, 6000}) frames.push_back(std::make_unique<SavingPair>(rows));
  for (int step = 0; step < 8; ++step) {
    CAPTURE(step);
    std::vector<SavingPair::Saved> saved;
    std::vector<at::Tensor> gradients;  // held until the optimizer has run
    for (auto& frame : frames) saved.push_back(frame->forward());
    for (size_t i = frames.size(); i-- > 0;) {
      gradients.push_back(frames[i]->backward(std::move(saved[i])));
      saved.pop_back();
    }
  }
  int64_t sum = 0;
  for (auto& frame : frames) {
    sum += arenaBytes(*frame);
    CHECK(remarksOf(*frame->runtime) == "");
    CHECK(frame->runtime->stats().captures == 2);
    CHECK(frame->runtime->stats().uncapturedSteps == 4);
  }
  CHECK(hostPages().bytes() < sum);
}

TEST_CASE("of many programs each has pages of one size, the first one that is planned, too",
          "[memory]") {
  const auto pageSizes = [](size_t programs) {
    std::vector<std::unique_ptr<SavingPair>> pairs;
    for (size_t i = 0; i < programs; ++i) pairs.push_back(std::make_unique<SavingPair>(90000));
    std::set<int64_t> sizes;
    for (int step = 0; step < 3; ++step) {
      std::vector<SavingPair::Saved> saved;
      for (auto& pair : pairs) saved.push_back(pair->forward());
      for (size_t i = pairs.size(); i-- > 0; saved.pop_back())
        (void)pairs[i]->backward(std::move(saved[i]));
    }
    hostPages().lock();
    for (const PageSource::Piece& piece : hostPages().mapped()) sizes.insert(piece.bytes);
    hostPages().unlock();
    return sizes;
  };
  const int64_t small = hostPages().source().smallPage(), large = hostPages().source().largePage();
  CHECK(pageSizes(2) == std::set<int64_t>{small, large});
  CHECK(pageSizes(3) == std::set<int64_t>{small});
  CHECK(pageSizes(1) == std::set<int64_t>{small, large});  // those before are gone
}

TEST_CASE("an order of backwards that does not nest costs neither bits nor captures", "[memory]") {
  SavingPair a(5000), b(7000);
  for (int step = 0; step < 4; ++step) {
    auto first = a.forward();
    auto second = b.forward();
    (void)b.backward(std::move(second));
    (void)a.backward(std::move(first));
  }
  for (int step = 0; step < 6; ++step) {
    CAPTURE(step);
    auto first = a.forward();
    auto second = b.forward();
    const at::Tensor gradient = a.backward(std::move(first)), bits = gradient.clone();
    (void)b.backward(std::move(second));
    CHECK(sameBits(gradient, bits));
  }
  for (auto* pair : {&a, &b}) {
    CHECK(remarksOf(*pair->runtime) == "");
    CHECK(pair->runtime->stats().captures == 2);
    CHECK(pair->runtime->stats().uncapturedSteps == 4);
  }
}

TEST_CASE("what a program leaves behind is overwritten, and what is held is not", "[memory]") {
  // Poison fills all that a step may use and nobody holds: were a rule missing, it would hit.
  SavingPair a(2000), b(2000);
  for (int step = 0; step < 3; ++step) {
    (void)a.backward(a.forward());
    (void)b.backward(b.forward());
  }
  auto held = a.forward();
  const at::Tensor gradient = b.backward(b.forward()), bits = gradient.clone();
  for (int step = 0; step < 3; ++step) {
    auto saved = b.forward();
    CHECK(sameBits(held.got, held.expected));
    CHECK(sameBits(gradient, bits));
    (void)b.backward(std::move(saved));
  }
  (void)a.backward(std::move(held));
}

TEST_CASE("a gradient that is a saved value is held when nothing is saved any more", "[memory]") {
  const int64_t rows = 5000;
  std::string text = forwardBackward(rows);  // an autograd.Function that returns what it has saved
  text = replaced(text, "own(%gw.out)", "own(%gw.out, %a)");
  text = replaced(text, "%gw.own : Float(4, 4, strides=[4, 1], device=cpu) =",
                  "%gw.own : Float(4, 4, strides=[4, 1], device=cpu), %ga.own : Float(5000, 4, "
                  "strides=[4, 1], device=cpu) =");
  text = replaced(text, "return (%gw.own {gradient \"w\"})",
                  "return (%gw.own {gradient \"w\"}, %ga.own {gradient \"x\"})");
  ForwardBackward returning(text, rows);
  SavingPair other(9000);
  int held = 0;
  for (int step = 0; step < 8; ++step) {
    CAPTURE(step);
    auto saved = returning.forward();
    auto inputs = backwardInputs(saved.got);
    saved.got.clear();
    const at::Tensor gradient = returning.runtime->run("backward", std::move(inputs))[1].toTensor();
    held += inHostArena(gradient.const_data_ptr());
    const at::Tensor& expected = saved.expected[1].toTensor();
    CHECK(sameBits(gradient, expected));
    (void)other.backward(other.forward());  // poison fills what nobody holds
    CHECK(sameBits(gradient, expected));
  }
  CHECK(held > 0);
}

TEST_CASE("memory is given back on request and comes back with the next step", "[memory]") {
  SavingPair a(3000), b(5000);
  for (int step = 0; step < 3; ++step) {
    (void)a.backward(a.forward());
    (void)b.backward(b.forward());
  }
  const int64_t all = hostPages().bytes();
  auto saved = a.forward();
  CHECK(a.runtime->device().releaseMemory() > 0);
  CHECK(hostPages().bytes() < all);
  CHECK(hostPages().bytes() > 0);  // what a saved
  (void)a.backward(std::move(saved));
  CHECK(b.runtime->device().releaseMemory() > 0);
  CHECK(hostPages().bytes() == 0);
  for (int step = 0; step < 3; ++step) {
    (void)a.backward(a.forward());
    (void)b.backward(b.forward());
  }
  CHECK(a.runtime->stats().captures == 2);
  CHECK(b.runtime->stats().captures == 2);
  CHECK(remarksOf(*a.runtime) == "");
}

namespace {

const char* const kChain = R"(gravure 1
graph step(%x : Float(4096, strides=[1], device=cpu) {user_input "x"}):
  %xs : Float(4096, strides=[1], device=cpu) = cudagraph::stage(%x)
  %y.out : Float(4096, strides=[1], device=cpu) = cudagraph::launch[index=0, tags=["staged: user input"]](%xs)
    block0(%xs.0 : Float(4096, strides=[1], device=cpu)):
      %a : Float(4096, strides=[1], device=cpu) = aten::tanh(%xs.0)
      %b : Float(4096, strides=[1], device=cpu) = aten::mul.Tensor(%a, %xs.0)
      %c : Float(4096, strides=[1], device=cpu) = aten::cos(%b)
      %y : Float(4096, strides=[1], device=cpu) = aten::add.Tensor(%c, %a)
      -> (%y)
  %y.own : Float(4096, strides=[1], device=cpu) = cudagraph::own(%y.out)
  return (%y.own {output "y"})
)";

}  // namespace

namespace {

/// An arena that has no memory while `*refuses`.
class RefusingSlab final : public Slab {
 public:
  RefusingSlab(std::shared_ptr<Slab> slab, const bool* refuses)
      : slab_(std::move(slab)), refuses_(refuses) {}
  char* base() const override { return slab_->base(); }
  int64_t bytes() const override { return slab_->bytes(); }
  bool enter(size_t entry, std::string& why) override {
    if (!*refuses_) return slab_->enter(entry, why);
    why = "refused";
    return false;
  }
  void leave() override { slab_->leave(); }
  void follow() override { slab_->follow(); }
  bool mayHaveChanged() const override { return slab_->mayHaveChanged(); }

 private:
  const std::shared_ptr<Slab> slab_;
  const bool* refuses_;
};

class RefusingDevice final : public DeviceOnHost {
 public:
  explicit RefusingDevice(const bool* refuses) : refuses_(refuses) {}
  std::shared_ptr<Slab> makeSlab(const ArenaShape& shape) override {
    return std::make_shared<RefusingSlab>(DeviceOnHost::makeSlab(shape), refuses_);
  }

 private:
  const bool* refuses_;
};

}  // namespace

TEST_CASE("a step for which there is no memory runs uncaptured, and the next ones do not",
          "[law1][law11][memory]") {
  bool refuses = false;
  SavingPair pair(2000);
  pair.runtime = std::make_unique<Runtime>(readProgram(forwardBackward(2000)),
                                           std::make_unique<RefusingDevice>(&refuses));
  for (int step = 0; step < 8; ++step) {
    CAPTURE(step);
    refuses = step == 4;
    auto saved = pair.forward();
    refuses = step == 4 || step == 6;  // in step 6 what was saved is lent
    (void)pair.backward(std::move(saved));
  }
  CHECK(pair.runtime->stats().uncapturedSteps == 4 + 3);
  CHECK(pair.runtime->stats().captures == 2);
  REQUIRE(pair.runtime->remarks().all().size() == 1);
  CHECK(pair.runtime->remarks().all()[0].name == "no-arena");
  CHECK_THAT(remarksOf(*pair.runtime), Catch::Contains("refused; this step ran uncaptured"));
}

TEST_CASE("programs on several threads never use the same pages at once", "[law12][memory]") {
  std::atomic<int64_t> wrong{0}, uncaptured{0};
  std::vector<std::thread> threads;
  const int count = at::get_num_threads();
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      at::set_num_threads(count);
      auto runtime = makeRuntime(kChain);
      for (int step = 0; step < 150; ++step) {
        const at::Tensor x = at::randn({4096}), a = x.tanh(), expected = (a * x).cos() + a;
        wrong += !sameBits(runtime->run("step", {x})[0].toTensor(), expected);
      }
      uncaptured += runtime->stats().uncapturedSteps;
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
  CHECK(uncaptured == 4 * 2);
  CHECK(hostPages().bytes() == 0);
}

TEST_CASE("a child process writes to its own copy of the arenas", "[law9][memory]") {
  SavingPair pair(2000);
  for (int step = 0; step < 3; ++step) (void)pair.backward(pair.forward());
  auto saved = pair.forward();
  const pid_t child = fork();
  if (child == 0) {
    // No Catch2 in here: only what the exit status can say.
    const bool same = sameBits(saved.got, saved.expected);
    saved.got[1].toTensor().fill_(7);
    _exit(same ? 0 : 1);
  }
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
  (void)pair.backward(std::move(saved));
}
