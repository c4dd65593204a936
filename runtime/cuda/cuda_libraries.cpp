#include "runtime/cuda/cuda_libraries.h"

#include "ir/torch_private/cuda_libraries.h"

#include <array>
#include <mutex>
#include <set>
#include <shared_mutex>

namespace gravure {

using torch_private::workspaceTables;

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
  if (torch_private::workspacesStay()) at::cuda::getCUDABlasLtWorkspace();
  torch_private::readyCudnn();
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
