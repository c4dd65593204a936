#pragma once
// Unlisted: the tables of cuBLAS' and cuBLASLt's workspaces, by handle and stream, and cuDNN's handle.
//
// A capture must find handles and workspaces made (law 8), and what it allocated of them must not stay
// in the tables behind it. Without the tables, workspaces of a capture would be handed to eager code
// when its memory is gone; without the handle, the first convolution of a capture would fail it. For
// //runtime:cuda alone: it needs CUDA's headers.

#include <ATen/cuda/CUDAContextLight.h>
#include <torch/headeronly/version.h>

#include <array>

// libtorch exports it; its own header needs cuDNN's. Weak: a libtorch without cuDNN has none.
struct cudnnContext;
namespace at::native {
__attribute__((weak)) cudnnContext* getCudnnHandle();
}

namespace gravure::torch_private {

inline auto workspaceTables() {
  return std::array{&at::cuda::cublas_handle_stream_to_workspace(),
                    &at::cuda::cublaslt_handle_stream_to_workspace()};
}

/// Whether cuBLAS's workspaces stay in the tables. Since 2.15 each product allocates its own, as any
/// operator does, unless TORCH_CUBLAS_WORKSPACE_CACHE=1 says otherwise; what was made here then would be
/// used by nobody.
inline bool workspacesStay() {
#if TORCH_VERSION_MINOR >= 15
  return at::cuda::isCUDABlasWorkspaceCachingEnabled();
#else
  return true;
#endif
}

/// Nothing where this libtorch has no cuDNN.
inline void readyCudnn() {
  if (at::native::getCudnnHandle != nullptr) at::native::getCudnnHandle();
}

}  // namespace gravure::torch_private
