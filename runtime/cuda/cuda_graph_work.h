#pragma once
// The nodes of a CUDA graph as plain data, and the writing of a kernel's parameters.

#include "runtime/device/captured_work.h"

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <llvm/ADT/SmallVector.h>

#include <vector>

namespace gravure {

/// Why the nodes of graphs cannot be read on this machine; "" if they can.
std::string whyNoGraphWork();

/// How many nodes the capture that `stream` is in has by now. The driver counts them one by one. Throws
/// c10::Error where it refuses.
size_t nodesInCapture(cudaStream_t stream);
/// Those that the next work on `stream` would follow: the last ones, but for work on other streams that
/// `stream` has not waited for. Throws c10::Error where the driver refuses.
llvm::SmallVector<cudaGraphNode_t, 1> lastNodesInCapture(cudaStream_t stream);
/// The nodes of `graph` in the order in which they were captured. Throws as the above.
std::vector<cudaGraphNode_t> nodesOf(cudaGraph_t graph);

/// A graph whose kernels may be given other parameters in the executable that was made of it.
class WritableGraph {
 public:
  /// Takes `graph`, whose capture has ended. `ends`: by call of the capture, nodesInCapture() behind it. A
  /// kernel of cuBLASLt does not tell how its parameters lie: it is not readable, and neither is a copy from
  /// the host's memory. Throws c10::Error where the driver refuses; the graph is destroyed then.
  WritableGraph(cudaGraph_t graph, const std::vector<size_t>& ends);
  ~WritableGraph();
  WritableGraph(const WritableGraph&) = delete;
  WritableGraph& operator=(const WritableGraph&) = delete;

  cudaGraph_t graph() const { return graph_; }
  const CapturedWork& work() const { return work_; }
  /// As Executable::write(). Touches nothing that runs already: launches to come have the bytes.
  void write(cudaGraphExec_t executable, size_t node, const uint8_t* bytes);

 private:
  struct Kernel {
    CUgraphNode node = nullptr;
    CUDA_KERNEL_NODE_PARAMS_v2 parameters{};
    std::vector<size_t> offsets;  // of its parameters
  };

  cudaGraph_t graph_;
  CapturedWork work_;
  std::vector<Kernel> kernels_;  // by node; empty for what cannot be written
};

// What a kernel's parameters hold without being set shows where memory holds another byte in each capture.

/// Fills the stack below the caller's frame.
void paintStack(uint8_t value);

/// Fills free blocks of the heap, and holds some of them while it lives: others lie elsewhere meanwhile.
class PaintedHeap {
 public:
  explicit PaintedHeap(uint8_t value);
  ~PaintedHeap();
  PaintedHeap(const PaintedHeap&) = delete;
  PaintedHeap& operator=(const PaintedHeap&) = delete;

 private:
  std::vector<void*> held_;
};

}  // namespace gravure
