#include "runtime/cuda/cuda_partition_graph.h"

#include "runtime/cuda/cuda_end_of_life.h"
#include "runtime/cuda/cuda_trace_numbers.h"
#include "runtime/device/call_faults.h"

#include <ATen/core/CachingHostAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <llvm/ADT/DenseMap.h>

#include <algorithm>
#include <utility>

namespace gravure {
namespace {

at::HostAllocator& pinned() { return *at::getHostAllocator(at::kCUDA); }

/// The number of the capture that `stream` is in; 0 if it is in none. Asked for streams of any thread.
unsigned long long captureOf(cudaStream_t stream) noexcept {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  unsigned long long number = 0;
  if (cudaStreamGetCaptureInfo(stream, &status, &number) != cudaSuccess) {
    (void)cudaGetLastError();  // the default stream beside one that is captured
    return 0;
  }
  return status == cudaStreamCaptureStatusActive ? number : 0;
}

std::atomic<int> captures{0};

}  // namespace

bool PartitionGraph::oneIsCaptured() { return captures.load() > 0; }

PartitionGraph::~PartitionGraph() {
  if (capturing_ || routed_) undo();
  const UnseenByCaptures unseen;
  if (executable_ != nullptr) warnAtEnd("the end of a graph", cudaGraphExecDestroy(executable_));
  nodes_.reset();
  if (!usesPool_) return;
  atEnd("giving back the use of a graph pool", [this] {
    allocator_.releasePool(stream_.device_index(), pool_);
    pinned().release_pool(pool_);
  });
}

void PartitionGraph::begin() {
  capturing_ = true;
  try {
    route();
    passCall("the begin of a capture by the driver");
    C10_CUDA_CHECK(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    torch_private::tellCaptureBegan(allocator_, stream_.device_index());
    told_ = true;
    capture_ = captureOf(stream_);
    TORCH_INTERNAL_ASSERT(capture_ != 0, "a stream that was told to capture does not");
    notesCalls_ = whyNoGraphWork().empty();
  } catch (...) {
    undo();
    throw;
  }
}

/// From the streams that take part in the capture, to the pool. Before the capture begins: what another
/// thread frees meanwhile must find the allocator told of it.
void PartitionGraph::route() {
  const auto takesPart = [this](cudaStream_t stream) {
    const auto ours = capture_.load(std::memory_order_relaxed);
    return ours != 0 && captureOf(stream) == ours;
  };
  passCall("the routing of allocations to a pool");
  allocator_.beginAllocateToPool(stream_.device_index(), pool_, takesPart);
  routed_ = true;
  captures.fetch_add(1);
  passCall("the routing of pinned allocations to a pool");
  pinned().begin_allocate_to_pool(pool_, [takesPart](c10::Stream stream) {
    return takesPart(c10::cuda::CUDAStream(c10::cuda::CUDAStream::UNCHECKED, stream));
  });
  usesPool_ = true;
}

/// PyTorch's allocator counts captures: one that is not told of the end of one defers for good.
void PartitionGraph::tellEnd() {
  if (std::exchange(told_, false))
    torch_private::tellCaptureEnded(allocator_, stream_.device_index());
}

void PartitionGraph::endRouting() {
  if (!std::exchange(routed_, false)) return;
  captures.fetch_sub(1);
  allocator_.endAllocateToPool(stream_.device_index(), pool_);
  if (usesPool_) {
    pinned().end_allocate_to_pool(pool_);
  } else {
    allocator_.releasePool(stream_.device_index(), pool_);  // the pinned one's has failed
  }
}

void PartitionGraph::noteCall(bool leavesOpen) {
  if (watched_) {
    passCall("the reading of a capture's nodes");
    ends_.push_back(nodesInCapture(stream_));
    return;
  }
  if (!notesCalls_) return;
  try {
    // To count is slow in a large graph.
    if (leavesOpen) {
      calls_.push_back({.count = nodesInCapture(stream_), .last = {}});
    } else {
      calls_.push_back({.count = 0, .last = lastNodesInCapture(stream_)});
    }
  } catch (const c10::Error&) {  // names for a profiler: no capture fails for them
    notesCalls_ = false;
  }
}

/// Of a capture that was not watched, which has ended.
void PartitionGraph::findEnds(cudaGraph_t graph) {
  if (!notesCalls_) return;
  llvm::DenseMap<cudaGraphNode_t, size_t> places;
  try {
    for (cudaGraphNode_t node : nodesOf(graph)) places.try_emplace(node, places.size());
  } catch (const c10::Error&) {  // as in noteCall()
    return;
  }
  size_t end = 0;
  for (const CallEnd& call : calls_) {
    end = std::max(end, call.count);
    for (cudaGraphNode_t node : call.last) {
      if (const auto at = places.find(node); at != places.end())
        end = std::max(end, at->second + 1);
    }
    ends_.push_back(end);
  }
  calls_.clear();
}

TraceNumbers PartitionGraph::traceNumbers() const {
  const uint32_t graph = traceNumberOf(executable_);
  if (graph == 0) return {};
  return {.first = uint64_t{graph} << 32, .ends = ends_};
}

/// Ends the capture in the driver and in the allocators: the graph is the caller's.
cudaGraph_t PartitionGraph::take() {
  cudaGraph_t graph = nullptr;
  C10_CUDA_CHECK(cudaStreamEndCapture(stream_, &graph));
  capture_ = 0;
  tellEnd();
  endRouting();
  TORCH_CHECK(graph != nullptr, "CUDA has no graph of what was captured");
  return graph;
}

void PartitionGraph::end() {
  try {
    cudaGraph_t graph = take();
    if (watched_) {
      nodes_ = std::make_unique<WritableGraph>(graph, ends_);
    } else {
      findEnds(graph);
    }
    constexpr auto kFlags =
        cudaGraphInstantiateFlagAutoFreeOnLaunch | cudaGraphInstantiateFlagUseNodePriority;
    const cudaError_t made = callSucceeds("the instantiation of a graph")
                                 ? cudaGraphInstantiateWithFlags(&executable_, graph, kFlags)
                                 : cudaErrorUnknown;
    if (!nodes_) (void)cudaGraphDestroy(graph);
    C10_CUDA_CHECK(made);
  } catch (...) {
    undo();
    throw;
  }
  draws_.end();
  capturing_ = false;
}

CapturedWork PartitionGraph::endTrial() {
  try {
    const WritableGraph nodes(take(), ends_);
    capturing_ = false;
    return nodes.work();
  } catch (...) {
    undo();
    throw;
  }
}

void PartitionGraph::launch(cudaStream_t stream) {
  if (!draws_.any()) {
    passCall("the launch of a graph");
    C10_CUDA_CHECK(cudaGraphLaunch(executable_, stream));
    return;
  }
  try {
    draws_.begin();
    passCall("the launch of a graph that draws");
    C10_CUDA_CHECK(cudaGraphLaunch(executable_, stream));
  } catch (...) {
    draws_.takeBack();
    throw;
  }
}

/// Each step is tried, whatever became of the one before it.
void PartitionGraph::undo() noexcept {
  capturing_ = false;
  atEnd("ending a capture that failed", [this] { endCapture(); });
  atEnd("telling of its end", [this] { tellEnd(); });
  atEnd("ending the routing of its allocations", [this] { endRouting(); });
  (void)cudaGetLastError();  // the failure's own; the next check would report it as its own
}

void PartitionGraph::endCapture() {
  capture_ = 0;
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  if (cudaStreamIsCapturing(stream_, &status) != cudaSuccess) return;
  if (status == cudaStreamCaptureStatusNone) return;
  cudaGraph_t graph = nullptr;
  (void)cudaStreamEndCapture(stream_, &graph);  // an error here is the capture's, known already
  if (graph != nullptr) (void)cudaGraphDestroy(graph);
}

}  // namespace gravure
