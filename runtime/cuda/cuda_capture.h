#pragma once
// Capture of one partition on a GPU, and its replay.

#include "runtime/cuda/cuda_partition_graph.h"
#include "runtime/device/device.h"

#include <c10/cuda/CUDAGuard.h>

#include <memory>
#include <mutex>
#include <optional>
#include <vector>

namespace gravure {

class CudaDevice;

/// Captures on the device's own stream, which is the current one of this thread meanwhile. The work
/// that preparing it enqueues there comes after what the caller's stream holds and before what the
/// caller enqueues next.
class CudaCapture final : public Capture {
 public:
  CudaCapture(CudaDevice& device, const std::vector<at::Generator>& generators);
  ~CudaCapture() override;

  void call(const Call& call, const c10::IValue& rng, torch::jit::Stack& stack) override;
  std::unique_ptr<Executable> finish() override;
  bool watchWork(uint8_t paint) override;
  CapturedWork endTrial() override;

 private:
  void record(const Call& call, const c10::IValue& rng, torch::jit::Stack& stack);
  void begin();
  c10::IValue standIn(const c10::IValue& rng);
  void leave();

  CudaDevice& device_;
  /// A generator can be in one capture of the process at a time.
  std::unique_lock<std::mutex> alone_;
  const c10::cuda::CUDAStream caller_;
  std::optional<c10::cuda::CUDAStreamGuard> onCaptureStream_;
  std::unique_ptr<PartitionGraph> graph_;
  std::optional<uint8_t> paint_;  // watched
  std::unique_ptr<PaintedHeap> heap_;
};

}  // namespace gravure
