// cuDNN's dropout draws from a state that whoever runs a recurrent module may seed anew: a capture holds for
// one seeding. The recurrent module here is a stand-in on the CPU.
#include "runtime/device/dropout_seedings.h"
#include "tests/unit/device_fixture.h"
#include "tests/unit/law_fixture.h"

#include <ATen/Context.h>
#include <ATen/ops/_cudnn_init_dropout_state.h>
#include <c10/core/InferenceMode.h>
#include <torch/library.h>

using namespace gravure;

namespace {

const char* const kBackward = R"(gravure 1
graph step(%w : Float(2, 3, 4, strides=[12, 4, 1], device=cpu) {parameter "w"}):
  %dx.out : Float(2, 3, 4, strides=[12, 4, 1], device=cpu) = cudagraph::launch[index=0, tags=["static: parameter"]](%w)
    block0(%w.0 : Float(2, 3, 4, strides=[12, 4, 1], device=cpu)):
      %dx : Float(2, 3, 4, strides=[12, 4, 1], device=cpu) = gravure::recurrent_backward(%w.0, [%w.0], %w.0, None, %w.0, %w.0, %w.0, None, None, 3, True, 2, DROPOUT, False, False, [0], 24, False)
      -> (%dx)
  %dx.own : Float(2, 3, 4, strides=[12, 4, 1], device=cpu) = cudagraph::own(%dx.out)
  return (%dx.own {output "dx"})
)";

std::vector<at::Tensor> doubled(const at::Tensor& x, at::TensorList, const at::Tensor&,
                                const std::optional<at::Tensor>&, const at::Tensor&,
                                const at::Tensor&, const std::optional<at::Tensor>&,
                                const std::optional<at::Tensor>&, const std::optional<at::Tensor>&,
                                int64_t, bool, int64_t, double, bool, bool, at::IntArrayRef,
                                int64_t, bool) {
  return {x * 2};
}

class SeededDevice final : public DeviceOnHost {
 public:
  explicit SeededDevice(const bool& next) : next_(next) {}
  bool seedsDropoutNext() const override { return next_; }

 private:
  const bool& next_;
};

struct Recurrent {
  explicit Recurrent(const std::string& dropout) {
    onCpu.impl("recurrent_backward", TORCH_FN(doubled));
    std::string text = kBackward;
    text.replace(text.find("DROPOUT"), 7, dropout);
    runtime = std::make_unique<Runtime>(readProgram(text), std::make_unique<SeededDevice>(next));
  }
  bool step() {
    const auto results = runtime->run("step", {w});
    return sameBits(results[0].toTensor(), w * 2);
  }

  torch::Library onCpu{torch::Library::IMPL, "gravure", c10::DispatchKey::CPU, __FILE__, __LINE__};
  at::Tensor w = at::randn({2, 3, 4});
  bool next = false;  // the next module seeds it
  std::unique_ptr<Runtime> runtime;
};

void seed() {
  const auto options = at::TensorOptions(c10::kCUDA).dtype(at::kByte);
  if (at::hasCUDA()) {
    CHECK(at::_cudnn_init_dropout_state(0.5, true, 1, options).numel() > 0);
  } else {
    CHECK_THROWS(at::_cudnn_init_dropout_state(0.5, true, 1, options));
  }
}

}  // namespace

TEST_CASE("each seeding of cuDNN's dropout is counted, also in inference mode") {
  const int64_t before = dropoutSeedings();
  seed();
  CHECK(dropoutSeedings() == before + 1);
  const c10::InferenceMode inference;
  seed();
  CHECK(dropoutSeedings() == before + 2);
}

TEST_CASE("a step that seeds cuDNN's dropout runs uncaptured, and is captured anew", "[law3]") {
  Recurrent recurrent("0.5");
  for (int i = 0; i < 6; ++i) CHECK(recurrent.step());
  const RuntimeStats before = recurrent.runtime->stats();
  CHECK(before.captures == 1);

  recurrent.next = true;
  CHECK(recurrent.step());
  CHECK(recurrent.runtime->stats().uncapturedSteps == before.uncapturedSteps + 1);
  CHECK(recurrent.runtime->remarks().count("dropout-seeded") == 1);
  recurrent.next = false;
  seed();
  CHECK(recurrent.step());
  CHECK(recurrent.step());
  CHECK(recurrent.runtime->stats().uncapturedSteps == before.uncapturedSteps + 1);
  CHECK(recurrent.runtime->stats().captures == 2);
  CHECK(recurrent.runtime->stats().replays == before.replays + 2);
}

TEST_CASE("no capture is replayed whose state of cuDNN's dropout somebody else has replaced",
          "[law3]") {
  Recurrent recurrent("0.5");
  for (int i = 0; i < 6; ++i) CHECK(recurrent.step());
  const RuntimeStats before = recurrent.runtime->stats();
  seed();
  CHECK(recurrent.step());
  CHECK(recurrent.step());
  CHECK(recurrent.runtime->stats().captures == before.captures + 1);
  CHECK(recurrent.runtime->stats().uncapturedSteps == before.uncapturedSteps);
}

TEST_CASE("a recurrent module without dropout asks for no seed") {
  Recurrent recurrent("0.");
  for (int i = 0; i < 6; ++i) CHECK(recurrent.step());
  recurrent.next = true;
  seed();
  CHECK(recurrent.step());
  CHECK(recurrent.runtime->stats().captures == 1);
  CHECK(recurrent.runtime->remarks().count("dropout-seeded") == 0);
}
