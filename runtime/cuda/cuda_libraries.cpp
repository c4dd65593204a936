#include "runtime/cuda/cuda_libraries.h"

#include <ATen/cuda/CUDAContextLight.h>

#include <mutex>

// libtorch exports it; its own header needs cuDNN's. Weak: a libtorch without cuDNN has none.
struct cudnnContext;
namespace at::native {
__attribute__((weak)) cudnnContext* getCudnnHandle();
}

namespace gravure {

void readyLibraries() {
  at::cuda::getCurrentCUDABlasHandle();
  at::cuda::getCUDABlasLtWorkspace();
  if (at::native::getCudnnHandle != nullptr) at::native::getCudnnHandle();
}

void dropWorkspaces(c10::cuda::CUDAStream stream) {
  const void* const dropped = stream.stream();
  for (auto* table : {&at::cuda::cublas_handle_stream_to_workspace(),
                      &at::cuda::cublaslt_handle_stream_to_workspace()}) {
    std::unique_lock lock(table->mutex);
    std::erase_if(table->map,
                  [&](const auto& entry) { return std::get<1>(entry.first) == dropped; });
  }
}

}  // namespace gravure
