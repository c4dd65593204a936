#pragma once
// One CUDA graph, and the undoing of a capture that failed.

#include "runtime/cuda/cuda_allocator.h"
#include "runtime/cuda/cuda_draws.h"
#include "runtime/cuda/cuda_graph_work.h"
#include "runtime/device/device.h"

#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <atomic>
#include <memory>
#include <vector>

namespace gravure {

/// PyTorch's CUDAGraph in 2.11 marks the default generator as capturing for the whole of each capture,
/// undoes little of one that fails, and throws in its destructor. So this is a graph of our own, which
/// PyTorch's allocators are told of as they are of PyTorch's. All but the destructor runs on one thread,
/// with the capture's stream current.
class PartitionGraph {
 public:
  /// `pool`: where allocations outside the plan go; the caller holds a use of it.
  PartitionGraph(CudaAllocator& allocator, c10::cuda::CUDAStream stream, c10::MempoolId_t pool)
      : allocator_(allocator), stream_(stream), pool_(pool) {}
  /// Undoes a capture that is still going on. The graph may be running: CUDA frees it behind its work.
  ~PartitionGraph();
  PartitionGraph(const PartitionGraph&) = delete;
  PartitionGraph& operator=(const PartitionGraph&) = delete;

  /// Begins to capture, in thread-local mode.
  void begin();
  /// What stands in for `generator` while a call that draws from it is captured.
  at::Generator standIn(const at::Generator& generator) {
    return draws_.standIn(generator, capture_);
  }
  /// After begin(): what is captured can be read, and written.
  void watch() { watched_ = true; }
  /// Behind each call of the capture. `leavesOpen`: of a call whose work goes on on another stream.
  void noteCall(bool leavesOpen);
  /// Ends the capture and instantiates. If that throws, the capture was undone.
  void end();
  /// Ends a watched capture, and makes nothing of it. If that throws, the capture was undone.
  CapturedWork endTrial();

  /// nullptr unless it was watched.
  const WritableGraph* nodes() const { return nodes_.get(); }
  /// As WritableGraph::write().
  void write(size_t node, const uint8_t* bytes) { nodes_->write(executable_, node, bytes); }
  /// As Executable::traceNumbers(), behind end().
  TraceNumbers traceNumbers() const;

  /// Enqueues the graph on `stream`, which must be the current one if it draws random numbers. If
  /// that throws, no generator has moved.
  void launch(cudaStream_t stream);

  /// Whether one is being captured now, on any thread.
  static bool oneIsCaptured();

 private:
  /// Where the nodes of a call end.
  struct CallEnd {
    size_t count = 0;                            // nodesInCapture(), or 0:
    llvm::SmallVector<cudaGraphNode_t, 1> last;  // lastNodesInCapture()
  };

  void route();
  cudaGraph_t take();
  void endCapture();
  void findEnds(cudaGraph_t graph);
  void tellEnd();
  void endRouting();
  void undo() noexcept;

  CudaAllocator& allocator_;
  const c10::cuda::CUDAStream stream_;
  const c10::MempoolId_t pool_;
  CudaDraws draws_;  // its parts of generators' states end with it, if the capture failed
  std::vector<CallEnd> calls_;  // of a capture that is not watched
  std::vector<size_t> ends_;    // by call, once the capture has ended: nodes behind it
  bool watched_ = false;
  bool notesCalls_ = false;
  std::unique_ptr<WritableGraph> nodes_;
  cudaGraphExec_t executable_ = nullptr;
  // CUDA's number for it, 0 while there is none; read by whoever allocates.
  std::atomic<unsigned long long> capture_{0};
  bool capturing_ = false, told_ = false, routed_ = false, usesPool_ = false;
};

}  // namespace gravure
