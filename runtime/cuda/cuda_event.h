#pragma once
// Points in the work of streams: events whose end throws nothing, and the order between two streams.

#include <c10/core/Stream.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <memory>
#include <vector>

namespace gravure {

/// Whether `stream` can take no work now but for a graph that is being captured.
bool isCapturing(cudaStream_t stream);

/// PyTorch's CUDAEvent may throw in its destructor, and its query breaks a capture of the thread's own.
class CudaEvent {
 public:
  CudaEvent() = default;
  ~CudaEvent();
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;

  /// After what `stream` holds now; forgets where it was before.
  void record(c10::cuda::CUDAStream stream);
  /// What `stream` gets next comes after it.
  void block(c10::cuda::CUDAStream stream) const;
  /// True if all work before it is done, and where it was never recorded. Breaks no capture.
  bool query() const;
  void synchronize() const;

 private:
  friend class LastWork;
  cudaEvent_t event_ = nullptr;
  c10::DeviceIndex device_ = -1;
};

/// What `later` gets next comes after what `earlier` holds now.
void order(c10::cuda::CUDAStream earlier, c10::cuda::CUDAStream later);
/// The same for a stream that other code may be capturing: false, and nothing is done, where it is.
[[nodiscard]] bool tryOrder(c10::cuda::CUDAStream earlier, c10::cuda::CUDAStream later);

/// What some streams hold when it is made, or, where one of them is being captured then, a little later.
/// Throws nothing: for what outlives its owner until the work on it is done.
class LastWork {
 public:
  explicit LastWork(const std::vector<c10::Stream>& streams);
  /// True if that work is done. Where the GPU is lost, no work is left.
  bool isDone() noexcept;
  /// Waits for it. False while a stream is being captured: then it cannot be waited for.
  bool wait() noexcept;

 private:
  struct OfStream {
    c10::cuda::CUDAStream stream;
    std::unique_ptr<CudaEvent> end;  // none while the stream is being captured
  };
  bool mark(OfStream& each) noexcept;

  std::vector<OfStream> streams_;  // whose work is not known to be done
};

}  // namespace gravure
