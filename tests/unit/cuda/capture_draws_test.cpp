// What a capture draws from, and that a generator's state is as before when it has ended. No GPU: the
// device is never asked.

#include "ir/torch_private/cuda_generator_state.h"

#include <ATen/Functions.h>

#include <optional>

using gravure::torch_private::CaptureDraws;
using gravure::torch_private::CudaState;
using gravure::torch_private::isTakenByCapture;
using gravure::torch_private::stateOfCuda;

namespace {

at::Generator generatorOf(const CudaState& state) {
  return at::make_generator<at::CUDAGeneratorImpl>(c10::DeviceIndex{0}, state);
}

CudaState freshState() { return c10::make_intrusive<at::CUDAGeneratorState>(); }

at::Tensor number() { return at::zeros({1}, at::kLong); }

}  // namespace

#if TORCH_VERSION_MINOR >= 12

TEST_CASE("law 8: a capture finds its part of a generator's state made, and takes it along") {
  const CudaState state = freshState();
  const at::Generator generator = generatorOf(state);
  const at::Tensor seed = number(), offset = number();
  std::optional<CaptureDraws> draws;
  draws.emplace(generator, 7, seed, offset);
  CHECK(draws->standIn() == generator);
  REQUIRE(state->capture_states_.count(7) == 1);
  const auto& part = *state->capture_states_.find(7)->second;
  CHECK(part.is_initialized());
  CHECK(part.rng_state_seed_extragraph_.data_ptr() == seed.data_ptr());
  CHECK(part.rng_state_offset_extragraph_.data_ptr() == offset.data_ptr());
  CHECK(state->philox_offset_per_thread_ == 0);

  state->capture_states_.find(7)->second->offset_intragraph_ = 12;
  CHECK(draws->end() == 12);
  CHECK(state->capture_states_.empty());
  CHECK(state->philox_offset_per_thread_ == 0);
}

TEST_CASE("law 6: a capture that fails leaves nothing in a generator's state") {
  const CudaState state = freshState();
  {
    const CaptureDraws failed(generatorOf(state), 7, number(), number());
    CHECK(state->capture_states_.size() == 1);
  }
  CHECK(state->capture_states_.empty());
}

TEST_CASE("law 12: a generator is in several captures at once") {
  const CudaState state = freshState();
  const at::Generator generator = generatorOf(state);
  CaptureDraws one(generator, 1, number(), number()), two(generator, 2, number(), number());
  CHECK_FALSE(isTakenByCapture(*state));
  state->capture_states_.find(1)->second->offset_intragraph_ = 4;
  state->capture_states_.find(2)->second->offset_intragraph_ = 8;
  CHECK(one.end() == 4);
  CHECK(state->capture_states_.count(2) == 1);
  CHECK(two.end() == 8);
}

#else

TEST_CASE("law 6: a capture draws from a state of its own, and leaves the generator's alone") {
  const CudaState state = freshState();
  const at::Generator generator = generatorOf(state);
  CaptureDraws draws(generator, 7, number(), number());
  CHECK(draws.standIn() != generator);
  CHECK_FALSE(isTakenByCapture(*state));
  const CudaState own = stateOfCuda(draws.standIn());
  CHECK(isTakenByCapture(*own));
  own->offset_intragraph_ = 12;
  CHECK(draws.end() == 12);
  CHECK_FALSE(isTakenByCapture(*own));
}

#endif
