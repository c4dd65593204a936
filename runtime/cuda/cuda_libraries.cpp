#include "runtime/cuda/cuda_libraries.h"

#include <ATen/cuda/CUDAContextLight.h>

#include <array>
#include <mutex>
#include <set>
#include <shared_mutex>

// libtorch exports it; its own header needs cuDNN's. Weak: a libtorch without cuDNN has none.
struct cudnnContext;
namespace at::native {
__attribute__((weak)) cudnnContext* getCudnnHandle();
}

namespace gravure {

namespace {

auto workspaceTables() {
  return std::array{&at::cuda::cublas_handle_stream_to_workspace(),
                    &at::cuda::cublaslt_handle_stream_to_workspace()};
}

}  // namespace

PassingWorkspaces::PassingWorkspaces() : stream_(c10::cuda::getCurrentCUDAStream().stream()) {
  // To ask for the thread's handle is to make its workspace.
  std::array<std::set<void*>, 2> before;
  for (size_t t = 0; t < before.size(); ++t) {
    auto* table = workspaceTables()[t];
    std::shared_lock lock(table->mutex);
    for (const auto& [of, memory] : table->map) {
      if (std::get<1>(of) == stream_) before[t].insert(std::get<0>(of));
    }
  }
  readyLibraries();
  handle_ = at::cuda::getCurrentCUDABlasHandle();
  for (size_t t = 0; t < before.size(); ++t) stays_[t] = before[t].contains(handle_);
}

PassingWorkspaces::~PassingWorkspaces() {
  for (size_t t = 0; t < stays_.size(); ++t) {
    auto* table = workspaceTables()[t];
    std::unique_lock lock(table->mutex);
    if (!stays_[t]) table->map.erase({handle_, stream_});
  }
}

void readyLibraries() {
  at::cuda::getCurrentCUDABlasHandle();
  at::cuda::getCUDABlasLtWorkspace();
  if (at::native::getCudnnHandle != nullptr) at::native::getCudnnHandle();
}

void dropWorkspaces(c10::cuda::CUDAStream stream) {
  const void* const dropped = stream.stream();
  for (auto* table : workspaceTables()) {
    std::unique_lock lock(table->mutex);
    std::erase_if(table->map,
                  [&](const auto& entry) { return std::get<1>(entry.first) == dropped; });
  }
}

}  // namespace gravure
