#include "runtime/cuda/cuda_partition_graph.h"

#include <ATen/core/CachingHostAllocator.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <c10/cuda/CUDAException.h>

#include <utility>

namespace gravure {

namespace {

/// For undoing: each step is tried, whatever became of the one before it.
template <typename Step>
void attempt(const char* what, Step step) noexcept {
  try {
    step();
  } catch (const std::exception& error) {
    TORCH_WARN("after a failed capture, ", what, " failed too: ", error.what());
  }
}

}  // namespace

PartitionGraph::PartitionGraph(CudaAllocator& allocator, c10::cuda::CUDAStream stream,
                               c10::MempoolId_t pool)
    : allocator_(allocator), stream_(stream), pool_(pool) {}

PartitionGraph::~PartitionGraph() {
  if (capturing_) undo();
}

void PartitionGraph::begin(const std::vector<at::Generator>& generators) {
  usesBefore_ = allocator_.getPoolUseCount(stream_.device_index(), pool_);
  for (const at::Generator& generator : generators) {
    if (generator.device().is_cuda()) register_generator_state(generator);
  }
  const size_t drawnFrom = captured_generator_states_.size();
  std::vector<at::CUDAGeneratorState*> named;
  for (const auto& [state, increment] : captured_generator_states_) named.push_back(state.get());

  capturing_ = true;
  try {
    capture_begin(pool_, cudaStreamCaptureModeThreadLocal);
  } catch (...) {
    undo();
    throw;
  }
  if (captured_generator_states_.size() == drawnFrom) return;
  // capture_begin always adds the default generator. While that is marked as capturing, a draw
  // from it on any other thread throws.
  for (const auto& [state, increment] : captured_generator_states_) {
    if (std::find(named.begin(), named.end(), state.get()) != named.end()) continue;
    state->capturing_ = false;
    idle_.push_back(state);
  }
}

void PartitionGraph::drawFromDefault() {
  for (const auto& state : idle_) state->capturing_ = true;
  idle_.clear();
}

void PartitionGraph::end() {
  try {
    capture_end();
  } catch (...) {
    undo();
    throw;
  }
  capturing_ = false;
  idle_.clear();
  for (const auto& [state, increment] : captured_generator_states_) draws_ |= increment != 0;
}

void PartitionGraph::launch(cudaStream_t stream) {
  if (draws_) {
    launchDrawing();
  } else {
    C10_CUDA_CHECK(cudaGraphLaunch(graph_exec_, stream));
  }
}

void PartitionGraph::launchDrawing() {
  c10::SmallVector<uint64_t, 4> offsets;
  for (const auto& [state, increment] : captured_generator_states_) {
    offsets.push_back(state->philox_offset_per_thread_);
  }
  try {
    replay();
  } catch (...) {
    size_t i = 0;
    for (const auto& [state, increment] : captured_generator_states_) {
      state->philox_offset_per_thread_ = offsets[i++];
    }
    throw;
  }
}

void PartitionGraph::undo() noexcept {
  capturing_ = false;
  attempt("ending it", [this] { endStreamCapture(); });
  attempt("ending the routing of allocations", [this] { endRouting(); });
  attempt("restoring the generators", [this] { leaveCapturing(); });
  attempt("giving the pool back", [this] { givePoolBack(); });
  (void)cudaGetLastError();  // the failure's own; the next check would report it as its own
}

void PartitionGraph::endStreamCapture() {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  if (cudaStreamIsCapturing(stream_, &status) == cudaSuccess &&
      status != cudaStreamCaptureStatusNone) {
    (void)cudaStreamEndCapture(stream_, &graph_);  // an error here is the capture's, known already
  }
  if (graph_ != nullptr && !has_graph_ && !has_graph_exec_) {
    (void)cudaGraphDestroy(graph_);
    graph_ = nullptr;
  }
  (void)cudaGetLastError();
}

void PartitionGraph::endRouting() {
  if (!allocator_.isRouted(stream_.device_index(), pool_)) return;
  allocator_.endAllocateToPool(stream_.device_index(), pool_);
  at::getHostAllocator(at::kCUDA)->end_allocate_to_pool(pool_);
}

void PartitionGraph::leaveCapturing() {
  for (const auto& [state, increment] : captured_generator_states_) {
    state->capturing_ = false;
    state->offset_intragraph_ = 0;
  }
  idle_.clear();
}

void PartitionGraph::givePoolBack() {
  reset();  // gives it back itself if capture_end() got that far
  const c10::DeviceIndex device = stream_.device_index();
  if (allocator_.getPoolUseCount(device, pool_) <= usesBefore_) return;
  allocator_.releasePool(device, pool_);
  at::getHostAllocator(at::kCUDA)->release_pool(pool_);
}

}  // namespace gravure
