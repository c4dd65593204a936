// Inputs that go to and fro between a few addresses, as averages of weights that are swapped in, or buffers
// of which one is written while the other is read: captures for each address.
#include "runtime/step/seal.h"
#include "tests/unit/law_fixture.h"

using namespace gravure;

namespace {

struct Alternating : SideBySide {
  /// `count` tensors for w, each at an address of its own and with other values.
  explicit Alternating(int count) {
    for (int i = 0; i < count; ++i) tensors.push_back(at::randn({8, 4}));
    tensors[0].copy_(w.detach());
    w = tensors[0];
  }
  bool stepAt(size_t index) {
    w = tensors[index];
    return step();
  }
  int64_t uncaptured() const { return runtime->stats().uncapturedSteps; }
  int64_t captures() const { return runtime->stats().captures; }
  int64_t sets() const { return runtime->stats().captureSets; }
  int count(const char* name) const { return runtime->remarks().count(name); }

  std::vector<at::Tensor> tensors;
};

}  // namespace

TEST_CASE("averages that are swapped in are captured once, and so are the weights",
          "[law1][law3]") {
  Alternating pair(2);
  for (int epoch = 0; epoch < 6; ++epoch) {
    CAPTURE(epoch);
    for (int i = 0; i < 8; ++i) CHECK(pair.stepAt(0));
    for (int i = 0; i < 3; ++i) CHECK(pair.stepAt(1));
  }
  CHECK(pair.uncaptured() == 2 + 1);
  CHECK(pair.captures() == 2 * 2);
  CHECK(pair.sets() == 2);
  CHECK(pair.count("captured-anew") == 1);
  CHECK(pair.count("input-staged") == 0);
  CHECK(pair.count("often-uncaptured") == 0);
}

TEST_CASE("addresses in turn, in each step another one", "[law1][law3]") {
  for (const size_t count : {2, 3, 4}) {
    CAPTURE(count);
    Alternating pair(count);
    for (size_t step = 0; step < 30; ++step) CHECK(pair.stepAt(step < 4 ? 0 : step % count));
    CHECK(pair.uncaptured() == static_cast<int64_t>(2 + count - 1));
    CHECK(pair.captures() == static_cast<int64_t>(2 * count));
    CHECK(pair.sets() == static_cast<int64_t>(count));
    CHECK(pair.count("input-staged") == 0);
  }
}

TEST_CASE("inputs at more addresses in turn than captures are kept for are copied", "[law1]") {
  Alternating pair(7);
  for (size_t step = 0; step < 60; ++step) CHECK(pair.stepAt(step < 4 ? 0 : step % 7));
  CHECK(pair.count("input-staged") == 1);
  CHECK(pair.sets() == 1);
  CHECK(pair.uncaptured() < 10);
}

TEST_CASE("one epoch each at more addresses than captures are kept for", "[law1]") {
  Alternating pair(6);
  for (int round = 0; round < 3; ++round) {
    for (size_t index = 0; index < 6; ++index) {
      for (int i = 0; i < 10; ++i) CHECK(pair.stepAt(index));
      CHECK(pair.sets() <= 4);
    }
  }
  CHECK(pair.count("input-staged") == 0);
  CHECK(pair.runtime->stats().replays > 2 * 150);
}

TEST_CASE("what lay beside goes when its memory does", "[law4]") {
  Alternating pair(2);
  for (int i = 0; i < 4; ++i) CHECK(pair.stepAt(0));
  for (int i = 0; i < 4; ++i) CHECK(pair.stepAt(1));
  REQUIRE(pair.sets() == 2);
  const c10::weak_intrusive_ptr<c10::StorageImpl> gone =
      pair.tensors[0].storage().getWeakStorageImpl();
  pair.tensors[0] = at::Tensor();
  CHECK(gone.expired());  // captures beside the current ones hold nothing
  for (int i = 0; i < 70; ++i) CHECK(pair.stepAt(1));
  CHECK(pair.sets() == 1);
}

TEST_CASE("what was replaced for good keeps nothing of what it was", "[law4]") {
  Alternating pair(1);
  for (int round = 0; round < 4; ++round) {
    for (int i = 0; i < 4; ++i) CHECK(pair.stepAt(0));
    const c10::weak_intrusive_ptr<c10::StorageImpl> old =
        pair.tensors[0].storage().getWeakStorageImpl();
    pair.tensors[0] = pair.tensors[0].clone();
    pair.w = at::Tensor();
    for (int i = 0; i < 2; ++i) CHECK(pair.stepAt(0));
    CHECK(old.expired());
    CHECK(pair.sets() == 1);
  }
}

TEST_CASE("other memory at the address of what went is captured anew", "[law3][law4]") {
  Alternating pair(2);
  std::vector<float> block(32, 0.5F);
  const auto made = [](void*) {};
  pair.tensors[0] = at::from_blob(block.data(), {8, 4}, made, at::kFloat);
  for (int i = 0; i < 4; ++i) CHECK(pair.stepAt(0));
  for (int i = 0; i < 4; ++i) CHECK(pair.stepAt(1));
  pair.tensors[0] = at::Tensor();
  pair.tensors[0] = at::from_blob(block.data(), {8, 4}, made, at::kFloat);
  for (int i = 0; i < 8; ++i) CHECK(pair.stepAt(static_cast<size_t>(i) / 4));
  CHECK(pair.sets() == 2);
}

TEST_CASE("a launch that fails has the calls of its own address run", "[law6]") {
  Alternating pair(2);
  for (int i = 0; i < 4; ++i) CHECK(pair.stepAt(0));
  for (int i = 0; i < 4; ++i) CHECK(pair.stepAt(1));
  for (size_t step = 0; step < 12; ++step) {
    if (step % 3 == 1) pair.runtime->device().injectFault(FaultPoint::Launch, 1 + step % 2);
    CAPTURE(step);
    CHECK(pair.stepAt(step % 2));
  }
  CHECK(pair.count("launch-failed") > 0);
  CHECK(pair.sets() == 2);
}

TEST_CASE("a result that is held, and captures that are dropped, end all of them", "[law5]") {
  Alternating pair(2);
  for (int i = 0; i < 4; ++i) CHECK(pair.stepAt(0));
  for (int i = 0; i < 4; ++i) CHECK(pair.stepAt(1));
  REQUIRE(pair.sets() == 2);
  const at::Tensor held = pair.last[1].toTensor(), bits = held.clone();
  CHECK(pair.stepAt(0));  // where captures stand, too: that alone is in their way
  CHECK(pair.count("result-held") == 1);
  for (size_t step = 1; step < 6; ++step) CHECK(pair.stepAt(step % 2));
  CHECK(sameBits(held, bits));
  pair.runtime->shutdown();
}

TEST_CASE("what a buffer gets is written where it lies in that step", "[law2]") {
  SideBySide pair;
  std::vector<at::Tensor> tensors, references;
  for (int i = 0; i < 2; ++i) {
    tensors.push_back(at::zeros({8}));
    references.push_back(at::zeros({8}));
  }
  for (size_t step = 0; step < 20; ++step) {
    const size_t at = step < 4 ? 0 : step % 2;
    pair.b = tensors[at];
    pair.referenceB = references[at];
    CAPTURE(step);
    CHECK(pair.step());
    for (size_t i = 0; i < 2; ++i) CHECK(sameBits(tensors[i], references[i]));
  }
  CHECK(pair.runtime->stats().captureSets == 2);
}

/// What the forward saves of a parameter is a view of it.
constexpr const char* kSavedView = R"(gravure 1
graph forward(%p : Float(4, 4, strides=[4, 1], device=cpu) {parameter "p"},
              %q : Float(2, strides=[1], device=cpu) {parameter "q"}):
  %y.out : Float(4, 4, strides=[4, 1], device=cpu), %v.out : Float(4, 4, strides=[1, 4], device=cpu), %z.out : Float(2, strides=[1], device=cpu) = cudagraph::launch[index=0, tags=["static: parameter", "static: parameter"]](%p, %q)
    block0(%p.0 : Float(4, 4, strides=[4, 1], device=cpu), %q.0 : Float(2, strides=[1], device=cpu)):
      %v : Float(4, 4, strides=[1, 4], device=cpu) = aten::t(%p.0)
      %y : Float(4, 4, strides=[4, 1], device=cpu) = aten::mm(%p.0, %v)
      %z : Float(2, strides=[1], device=cpu) = aten::mul.Tensor(%q.0, %q.0)
      -> (%y, %v, %z)
  %y.own : Float(4, 4, strides=[4, 1], device=cpu) = cudagraph::own(%y.out)
  %z.own : Float(2, strides=[1], device=cpu) = cudagraph::own(%z.out)
  return (%y.own {output "y"}, %z.own {output "z"}, %v.out {saved "v"})
)";

TEST_CASE("a view of a parameter whose storage is given memory anew stays a view of it",
          "[law1][law3]") {
  // As FSDP2 does: storages stay, are emptied behind each use, and filled before the next one, where
  // memory is: also where another one's was. Two layers of one program come in turns.
  const auto runtime = makeRuntime(kSavedView), reference = makeReference(kSavedView);
  const std::vector<at::Tensor> ps = {at::randn({4, 4}), at::randn({4, 4})};
  const std::vector<at::Tensor> qs = {at::randn({2}), at::randn({2})};
  const at::Tensor first = at::randn({16}), second = at::randn({16});
  const auto place = [](const at::Tensor& tensor, const at::Tensor& memory) {
    c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
    (void)storage->set_data_ptr(c10::DataPtr(memory.data_ptr(), memory.device()));
    storage->set_nbytes(tensor.nbytes());
  };
  const auto empty = [](const at::Tensor& tensor) {
    c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
    (void)storage->set_data_ptr(c10::DataPtr(nullptr, tensor.device()));
    storage->set_nbytes(static_cast<size_t>(0));
  };
  for (size_t step = 0; step < 16; ++step) {
    const bool swapped = step >= 4 && step % 3 != 0;
    const at::Tensor &p = ps[step / 2 % 2], &q = qs[step / 2 % 2];
    place(p, swapped ? second : first);
    place(q, swapped ? first : second);
    CAPTURE(step);
    const auto expected = reference->run("forward", {p, q});
    const auto found = runtime->run("forward", {p, q});
    CHECK(sameBits(found, expected));
    CHECK(found[2].toTensor().storage().is_alias_of(p.storage()));
    empty(p);
    empty(q);
  }
  CHECK(runtime->stats().captureSets == 2);
  CHECK(runtime->stats().replays > 8);
}

TEST_CASE("seals that are set aside stand beside the current one", "[law4]") {
  Seals seals;
  const auto sealOf = [](const at::Tensor& tensor) {
    const auto captured = std::make_shared<CapturedPartition>();
    captured->memory->add(tensor.storage());
    Seal::Contents contents;
    contents.launches.push_back({captured, {}});
    contents.tensors.add(0, *OperandGuard::ofDropped(tensor).layout());
    return contents;
  };
  std::vector<at::Tensor> tensors;
  for (int i = 0; i < 4; ++i) {
    tensors.push_back(at::randn({4}));
    if (i > 0) seals.setAside(/*most=*/2);
    seals.add(sealOf(tensors.back()));
    CHECK(seals.current() == seals.find({tensors.back()}));
  }
  CHECK(seals.count() == 3);
  CHECK(seals.find({tensors[0]}) == nullptr);  // it was current longest ago
  const Seal* first = seals.find({tensors[1]});
  REQUIRE(first);
  CHECK(seals.makeCurrent(*first));
  CHECK(seals.current() == first);
  tensors[3] = at::Tensor();
  seals.dropGone();
  CHECK(seals.count() == 2);
  CHECK(seals.current() == first);
  seals.breakCurrent();
  CHECK(seals.current() == nullptr);
  CHECK(seals.count() == 1);
  const Seal* second = seals.find({tensors[2]});
  REQUIRE(second);
  const at::Tensor other = tensors[2].view({4});  // the same memory, which is there
  CHECK(seals.find({other}) == second);
  seals.breakAll();
  CHECK(seals.count() == 0);
}
