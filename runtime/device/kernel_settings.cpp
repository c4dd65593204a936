#include "runtime/device/kernel_settings.h"

#include <ATen/Context.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <mutex>
#include <vector>

namespace gravure {
namespace {

template <typename Values>
int32_t inOneNumber(const Values& values) {
  int32_t number = 0;
  for (const auto& value : values) number = number * 16 + static_cast<int32_t>(value) + 1;
  return number;
}

/// Calls visit(name, value) for each setting, in one order. Names are those of PyTorch's Python. What a later
/// release has is asked where it is there.
template <typename Context, typename Visit>
void forEachSetting(Context& context, Visit&& visit) {
  using at::Float32Backend, at::Float32Op;
  visit("torch.backends.cuda.enable_flash_sdp", context.userEnabledFlashSDP());
  visit("torch.backends.cuda.enable_mem_efficient_sdp", context.userEnabledMemEfficientSDP());
  visit("torch.backends.cuda.enable_math_sdp", context.userEnabledMathSDP());
  visit("torch.backends.cuda.enable_cudnn_sdp", context.userEnabledCuDNNSDP());
  visit("torch.nn.attention.activate_flash_attention_impl", context.userEnabledFA3SDP());
  if constexpr (requires { context.userEnabledFA4SDP(); })
    visit("torch.nn.attention.activate_flash_attention_impl", context.userEnabledFA4SDP());
  visit("torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp",
        context.allowFP16BF16ReductionMathSDP());
  visit("the order of attention backends", inOneNumber(context.sDPPriorityOrder()));
  visit("torch.backends.cuda.matmul.fp32_precision",
        context.float32Precision(Float32Backend::CUDA, Float32Op::MATMUL));
  visit("torch.backends.cudnn.conv.fp32_precision",
        context.float32Precision(Float32Backend::CUDA, Float32Op::CONV));
  visit("torch.backends.cudnn.rnn.fp32_precision",
        context.float32Precision(Float32Backend::CUDA, Float32Op::RNN));
  visit("torch.backends.mkldnn.matmul.fp32_precision",
        context.float32Precision(Float32Backend::MKLDNN, Float32Op::MATMUL));
  visit("torch.backends.mkldnn.conv.fp32_precision",
        context.float32Precision(Float32Backend::MKLDNN, Float32Op::CONV));
  visit("torch.backends.mkldnn.rnn.fp32_precision",
        context.float32Precision(Float32Backend::MKLDNN, Float32Op::RNN));
  visit("torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction",
        context.allowFP16ReductionCuBLAS());
  visit("torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction",
        context.allowBF16ReductionCuBLAS());
  visit("torch.backends.cuda.matmul.allow_fp16_accumulation",
        context.allowFP16AccumulationCuBLAS());
  visit("torch.backends.cudnn.enabled", context.userEnabledCuDNN());
  visit("torch.backends.cudnn.benchmark", context.benchmarkCuDNN());
  visit("torch.backends.cudnn.deterministic", context.deterministicCuDNN());
  visit("torch.backends.mkldnn.enabled", context.userEnabledMkldnn());
  visit("torch.backends.mkldnn.deterministic", context.deterministicMkldnn());
  visit("torch.backends.nnpack", context.userEnabledNNPACK());
  visit("torch.use_deterministic_algorithms", context.deterministicAlgorithms());
  visit("torch.utils.deterministic.fill_uninitialized_memory",
        context.deterministicFillUninitializedMemory());
  visit("torch.backends.cuda.preferred_linalg_library", context.linalgPreferredBackend());
  visit("torch.backends.cuda.preferred_blas_library", context.blasPreferredBackend());
  visit("torch.backends.cpu.allow_fp16_reduced_precision_reduction",
        context.allowFP16ReductionCPU());
  visit("torch.backends.quantized.engine", context.qEngine());
  visit("the number of multiprocessors that products leave free",
        context._SMCarveout_EXPERIMENTAL().value_or(-1));
  if constexpr (requires { context.cudnnDepthwiseKernel(); })
    visit("the kernel of cuDNN's depthwise convolutions", context.cudnnDepthwiseKernel());
  if constexpr (requires { context.preferCublasltGroupedGemm(); })
    visit("the library of grouped products", context.preferCublasltGroupedGemm());
}

}  // namespace

KernelSettings KernelSettings::now() {
  KernelSettings settings;
  size_t i = 0;
  forEachSetting(at::globalContext(), [&](const char*, auto value) {
    settings.values_.at(i++) = static_cast<int32_t>(value);
  });
  return settings;
}

std::string KernelSettings::difference(const KernelSettings& other) const {
  std::string names;
  size_t i = 0;
  forEachSetting(at::globalContext(), [&](const char* name, auto) {
    const bool differs = values_.at(i) != other.values_.at(i);
    ++i;
    if (differs) names += (names.empty() ? "" : ", ") + std::string(name);
  });
  return names;
}

namespace {

/// All that were ever asked for a number: a few.
struct Numbered {
  std::mutex mutex;
  std::vector<KernelSettings> settings;

  static Numbered& all() {
    static Numbered* const all = new Numbered;  // asked by what may outlive static objects
    return *all;
  }
};

}  // namespace

int64_t KernelSettings::number() const {
  auto& [mutex, known] = Numbered::all();
  const std::lock_guard lock(mutex);
  const auto found = std::find(known.begin(), known.end(), *this);
  if (found != known.end()) return found - known.begin();
  known.push_back(*this);
  return static_cast<int64_t>(known.size()) - 1;
}

KernelSettings KernelSettings::ofNumber(int64_t number) {
  auto& [mutex, known] = Numbered::all();
  const std::lock_guard lock(mutex);
  TORCH_CHECK(number >= 0 && number < static_cast<int64_t>(known.size()),
              "there are no settings of kernels number ", number);
  return known[number];
}

}  // namespace gravure
