// Settings of the process by which operators choose their kernels, changed after the capture.
#include "runtime/device/kernel_settings.h"
#include "tests/unit/law_fixture.h"

#include <ATen/Context.h>
#include <c10/util/ScopeExit.h>

using namespace gravure;

namespace {

/// Attention is chosen where it is called: by flash on the CPU, by mathematics where that is switched off.
const char* const kAttention = R"(gravure 1
graph step(%q : Float(2, 4, 64, 32, strides=[8192, 2048, 32, 1], device=cpu) {parameter "q"}):
  %y.out : Float(2, 4, 64, 32, strides=[8192, 2048, 32, 1], device=cpu) = cudagraph::launch[index=0, tags=["static: parameter"]](%q)
    block0(%q.0 : Float(2, 4, 64, 32, strides=[8192, 2048, 32, 1], device=cpu)):
      %y : Float(2, 4, 64, 32, strides=[8192, 2048, 32, 1], device=cpu) = aten::scaled_dot_product_attention(%q.0, %q.0, %q.0)
      -> (%y)
  %y.own : Float(2, 4, 64, 32, strides=[8192, 2048, 32, 1], device=cpu) = cudagraph::own(%y.out)
  return (%y.own {output "y"})
)";

struct Attention {
  at::Tensor q = at::randn({2, 4, 64, 32});
  std::unique_ptr<Runtime> runtime = makeRuntime(kAttention), reference = makeReference(kAttention);

  bool step() {
    last.clear();
    last = runtime->run("step", {q});
    return sameBits(last, reference->run("step", {q}));
  }
  std::vector<c10::IValue> last;
};

void setFlash(bool on) { at::globalContext().setSDPUseFlash(on); }

}  // namespace

TEST_CASE("a setting that chooses kernels is obeyed from the next step on", "[law3][law11]") {
  const auto restore = c10::make_scope_exit([] { setFlash(true); });
  Attention attention;
  for (int i = 0; i < 6; ++i) CHECK(attention.step());
  const at::Tensor byFlash = attention.last[0].toTensor().clone();
  const int64_t before = attention.runtime->stats().uncapturedSteps;

  setFlash(false);
  CHECK(attention.step());
  CHECK_FALSE(sameBits(attention.last[0].toTensor(), byFlash));  // else this test shows nothing
  CHECK(attention.runtime->stats().uncapturedSteps == before + 1);
  CHECK(attention.runtime->remarks().count("settings-differ") == 1);
  for (int i = 0; i < 6; ++i) CHECK(attention.step());
  const int64_t uncaptured = attention.runtime->stats().uncapturedSteps;
  CHECK(attention.step());
  CHECK(attention.runtime->stats().uncapturedSteps == uncaptured);  // captured with it

  setFlash(true);
  CHECK(attention.step());
  CHECK(sameBits(attention.last[0].toTensor(), byFlash));
}

TEST_CASE("a setting that changes for one step leaves the captures", "[law3]") {
  const auto restore = c10::make_scope_exit([] { setFlash(true); });
  Attention attention;
  for (int i = 0; i < 6; ++i) CHECK(attention.step());
  const int64_t captures = attention.runtime->stats().captures;
  const int64_t before = attention.runtime->stats().uncapturedSteps;
  for (int i = 0; i < 3; ++i) {
    setFlash(false);
    CHECK(attention.step());
    setFlash(true);
    CHECK(attention.step());
  }
  CHECK(attention.runtime->stats().uncapturedSteps == before + 3);
  CHECK(attention.runtime->stats().captures == captures);
}

TEST_CASE("settings of kernels are told apart, and named as in Python", "[law11]") {
  const auto restore = c10::make_scope_exit([] {
    setFlash(true);
    at::globalContext().setBenchmarkCuDNN(false);
    at::globalContext().setFloat32Precision(at::Float32Backend::CUDA, at::Float32Op::MATMUL,
                                            at::Float32Precision::NONE);
  });
  const KernelSettings plain = KernelSettings::now();
  CHECK(plain.difference(KernelSettings::now()) == "");
  setFlash(false);
  at::globalContext().setBenchmarkCuDNN(true);
  const KernelSettings other = KernelSettings::now();
  CHECK(other != plain);
  CHECK(other.difference(plain) ==
        "torch.backends.cuda.enable_flash_sdp, torch.backends.cudnn.benchmark");
  at::globalContext().setFloat32Precision(at::Float32Backend::CUDA, at::Float32Op::MATMUL,
                                          at::Float32Precision::TF32);
  CHECK(KernelSettings::now().difference(other) == "torch.backends.cuda.matmul.fp32_precision");
  CHECK(other.number() != plain.number());
  CHECK(other.number() == KernelSettings(other).number());
  CHECK(KernelSettings::ofNumber(other.number()) == other);
  CHECK_THROWS_WITH(KernelSettings::ofNumber(-1), Catch::Contains("no settings of kernels"));
}
