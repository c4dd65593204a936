#include "runtime/cuda/cuda_capture.h"

#include "runtime/cuda/cuda_device.h"
#include "runtime/cuda/cuda_end_of_life.h"
#include "runtime/cuda/cuda_event.h"
#include "runtime/cuda/cuda_libraries.h"
#include "runtime/device/rng.h"
#include "runtime/program/instruction.h"

#include <c10/cuda/CUDAGuard.h>

#include <utility>

namespace gravure {

namespace {

class CudaExecutable final : public Executable {
 public:
  CudaExecutable(CudaDevice& device, std::unique_ptr<PartitionGraph> graph)
      : device_(device), graph_(std::move(graph)) {}

  void replay() override {
    device_.passFaultPoint(FaultPoint::Launch);
    const c10::cuda::CUDAStream stream = device_.currentStream();
    const c10::cuda::CUDAGuard here(stream.device_index());
    device_.captures().inOrder(stream, [&] { graph_->launch(stream); });
    try {
      device_.tidyWarmUp();
    } catch (const std::exception& error) {  // the graph runs: no launch has failed
      warnAtEnd("giving back what warm-ups left", error);
    }
  }

  const CapturedWork& work() const override {
    return graph_->nodes() ? graph_->nodes()->work() : Executable::work();
  }
  void write(size_t node, const uint8_t* bytes) override { graph_->write(node, bytes); }
  TraceNumbers traceNumbers() const override { return graph_->traceNumbers(); }

 private:
  CudaDevice& device_;
  std::unique_ptr<PartitionGraph> graph_;
};

std::mutex& oneCapture() {
  static std::mutex mutex;
  return mutex;
}

}  // namespace

CudaCapture::CudaCapture(CudaDevice& device, const std::vector<at::Generator>& generators)
    : device_(device), alone_(oneCapture()), caller_(device.currentStream()) {
  TORCH_CHECK(!isCapturing(caller_),
              "a partition cannot be captured while the caller's stream is being captured");
  CudaDraws::awaitFree(generators);
  order(caller_, device_.captures().stream());
  onCaptureStream_.emplace(device_.captures().stream());
  try {
    begin();
  } catch (...) {
    leave();
    throw;
  }
}

CudaCapture::~CudaCapture() {
  atEnd("leaving a capture", [this] { leave(); });
}

void CudaCapture::begin() {
  ArenaBypass bypass;
  {
    // In the pool, workspaces stay at their addresses whoever drops PyTorch's workspaces and cache. A
    // graph of PyTorch's that is reset drops those of its own stream alone (2.12).
    const cudaStream_t ours = device_.captures().stream();
    PoolRouting routing(device_.allocator(), device_.tensorDevice().index(),
                        device_.captures().pool(),
                        [ours](cudaStream_t stream) { return stream == ours; });
    readyLibraries();
  }
  graph_ = std::make_unique<PartitionGraph>(device_.allocator(), device_.captures().stream(),
                                            device_.captures().pool());
  graph_->begin();
  device_.passFaultPoint(FaultPoint::CaptureBegin);
}

/// Undoes the capture unless finish() took its graph; the caller's stream is current again.
void CudaCapture::leave() {
  if (!onCaptureStream_) return;
  graph_.reset();
  onCaptureStream_.reset();
  alone_.unlock();
  order(device_.captures().stream(), caller_);
}

bool CudaCapture::watchWork(uint8_t paint) {
  if (!whyNoGraphWork().empty()) return false;
  paint_ = paint;
  heap_ = std::make_unique<PaintedHeap>(paint);
  graph_->watch();
  return true;
}

void CudaCapture::call(const Call& call, const c10::IValue& rng, torch::jit::Stack& stack) {
  if (paint_) paintStack(*paint_);
  record(call, rng, stack);
  graph_->noteCall(call.leavesOpen);
}

void CudaCapture::record(const Call& call, const c10::IValue& rng, torch::jit::Stack& stack) {
  device_.passFaultPoint(FaultPoint::CaptureCall);
  TORCH_CHECK(
      !rng.isTensor(),
      "a call that draws from a saved state cannot be captured: its state is set on the host");
  const c10::Device where = device_.tensorDevice();
  if (!call.draws && rng.isNone()) {
    call.run(stack);
    return;
  }
  const RngScope scope(where, standIn(rng));
  call.run(stack);
}

/// What the graph has in place of the generator `rng`, or of the default one.
c10::IValue CudaCapture::standIn(const c10::IValue& rng) {
  const at::Generator from =
      rng.isNone() ? defaultGenerator(device_.tensorDevice()) : rng.toGenerator();
  if (!from.device().is_cuda()) return rng;  // RngScope refuses it
  const ArenaBypass bypass;
  return graph_->standIn(from);
}

std::unique_ptr<Executable> CudaCapture::finish() {
  TORCH_INTERNAL_ASSERT(graph_ != nullptr, "finish() was called before");
  try {
    device_.passFaultPoint(FaultPoint::CaptureEnd);
    graph_->end();
  } catch (...) {
    leave();
    throw;
  }
  auto executable = std::make_unique<CudaExecutable>(device_, std::move(graph_));
  leave();
  return executable;
}

CapturedWork CudaCapture::endTrial() {
  TORCH_INTERNAL_ASSERT(graph_ != nullptr, "the capture was ended before");
  try {
    device_.passFaultPoint(FaultPoint::CaptureEnd);
    CapturedWork work = graph_->endTrial();
    leave();
    return work;
  } catch (...) {
    leave();
    throw;
  }
}

}  // namespace gravure
