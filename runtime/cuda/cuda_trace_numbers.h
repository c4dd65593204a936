#pragma once
// What a profiler calls the nodes of a graph.

#include <cuda_runtime_api.h>

#include <cstdint>

namespace gravure {

/// The number of an instantiated graph in CUPTI's records. Its nodes are numbered by it in the upper 32
/// bits, and by the order in which they were captured in the lower ones (CUpti_ActivityKernel's
/// graphNodeId; a trace of torch.profiler has it as "graph node id"). 0 where CUPTI cannot be asked.
/// (cudaGraphExecGetId says the same, and asks for a driver of CUDA 13.1.)
uint32_t traceNumberOf(cudaGraphExec_t graph);

}  // namespace gravure
