#include "runtime/cuda/cuda_draws.h"

#include "ir/torch_private/cuda_generator_state.h"

#include <ATen/EmptyTensor.h>
#include <ATen/Functions.h>
#include <c10/cuda/CUDACachingAllocator.h>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <thread>
#include <utility>

namespace gravure {
namespace {

using State = torch_private::CudaState;
using torch_private::stateMember;
using torch_private::stateOfCuda;

at::CUDAGeneratorImpl& implOf(const at::Generator& generator) {
  return *at::check_generator<at::CUDAGeneratorImpl>(generator);
}

at::TensorBase number() {
  // Not at::empty: where algorithms must be deterministic it fills, and a graph would do that each time.
  return at::detail::empty_generic({1}, c10::cuda::CUDACachingAllocator::get(),
                                   c10::DispatchKeySet(c10::DispatchKey::CUDA), at::kLong,
                                   /*memory_format_opt=*/std::nullopt);
}

bool isFree(const at::Generator& generator) {
  return !generator.device().is_cuda() || !torch_private::isTakenByCapture(*stateOfCuda(generator));
}

void checkFree(const at::Generator& generator) {
  TORCH_CHECK(isFree(generator), "a generator of ", generator.device(),
              " that it draws from is in a graph that is being captured elsewhere: PyTorch lets it "
              "be in one capture at a time");
}

}  // namespace

CudaDraws::CudaDraws() = default;
CudaDraws::~CudaDraws() = default;

void CudaDraws::awaitFree(const std::vector<at::Generator>& generators) {
  using Clock = std::chrono::steady_clock;
  const auto latest = Clock::now() + std::chrono::milliseconds(500);
  for (const at::Generator& generator : generators) {
    while (!isFree(generator) && Clock::now() < latest)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    checkFree(generator);
  }
}

CudaDraws::Source* CudaDraws::sharing(const at::Generator& generator) {
  const State state = stateOfCuda(generator);
  const auto found = std::find_if(sources_.begin(), sources_.end(), [&](const Source& each) {
    return each.generator == generator || stateOfCuda(each.generator) == state;
  });
  return found == sources_.end() ? nullptr : &*found;
}

at::Generator CudaDraws::standIn(const at::Generator& generator, unsigned long long capture) {
  checkFree(generator);  // a capture elsewhere that began since would draw from the stand-in, too
  if (const Source* known = sharing(generator)) return known->captured->standIn();
  Source source;
  source.generator = generator;
  source.seed = number();
  source.offset = number();
  source.captured =
      std::make_unique<torch_private::CaptureDraws>(generator, capture, source.seed, source.offset);
  sources_.push_back(std::move(source));
  return sources_.back().captured->standIn();
}

void CudaDraws::end() {
  for (size_t i = 0; i < sources_.size(); ++i) {
    Source& source = sources_[i];
    source.increment = source.captured->end();
    source.captured.reset();
    if (source.increment > 0) drawn_.push_back(i);
  }
}

void CudaDraws::begin() {
  std::vector<State> states;
  for (const size_t number : drawn_) {
    sources_[number].moved = false;
    State state = stateOfCuda(sources_[number].generator);
    TORCH_CHECK(std::find(states.begin(), states.end(), state) == states.end(),
                "two generators that it draws from had states of their own when it was captured, "
                "and share one now");
    TORCH_CHECK(!torch_private::isTakenByCapture(*state),
                "a generator that it draws from is in a graph that is being captured elsewhere");
    states.push_back(std::move(state));
  }
  for (const size_t number : drawn_) {
    Source& source = sources_[number];
    at::CUDAGeneratorImpl& impl = implOf(source.generator);
    uint64_t seed = 0;
    {
      const std::lock_guard lock(impl.mutex_);
      const State& state = impl.*stateMember();
      seed = state->seed_;
      source.before = state->philox_offset_per_thread_;
      state->philox_offset_per_thread_ += source.increment;
      source.moved = true;
    }
    if (!source.filled || seed != source.filledSeed) {
      at::Tensor(source.seed).fill_(static_cast<int64_t>(seed));
      source.filledSeed = seed;
      source.filled = true;
    }
    at::Tensor(source.offset).fill_(static_cast<int64_t>(source.before));
  }
}

void CudaDraws::takeBack() noexcept {
  for (const size_t number : drawn_) {
    Source& source = sources_[number];
    if (!std::exchange(source.moved, false)) continue;
    source.filled = false;
    at::CUDAGeneratorImpl& impl = implOf(source.generator);
    const std::lock_guard lock(impl.mutex_);
    const State& state = impl.*stateMember();
    if (state->philox_offset_per_thread_ == source.before + source.increment)
      state->philox_offset_per_thread_ = source.before;
  }
}

}  // namespace gravure
