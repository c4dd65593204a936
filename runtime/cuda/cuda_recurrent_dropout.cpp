#include "ir/torch_private/cuda_dropout_restart.h"
#include "runtime/cuda/cuda_device.h"

#include <ATen/Context.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>

#include <mutex>

namespace gravure {

bool takeDropoutRestart(c10::DeviceIndex index) {
  const at::Generator& generator = at::globalContext().defaultGenerator({c10::kCUDA, index});
  auto& impl = *at::check_generator<at::CUDAGeneratorImpl>(generator);
  const std::lock_guard lock(impl.mutex_);
  return impl.reset_rnn_state();
}

bool CudaDevice::seedsDropoutNext() const {
  return torch_private::seedsDropoutNext(at::globalContext().defaultGenerator(tensorDevice()));
}

}  // namespace gravure
