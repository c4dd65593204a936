#pragma once
// What CUDA's libraries make once a thread and stream: handles, workspaces.

#include <c10/cuda/CUDAStream.h>

namespace gravure {

/// Makes the handles of this thread and their workspaces for the current stream: a capture must find
/// them there. Cheap when they are.
void readyLibraries();

/// Frees the workspaces for `stream`. No graph that was captured on it may be launched again.
void dropWorkspaces(c10::cuda::CUDAStream stream);

}  // namespace gravure
