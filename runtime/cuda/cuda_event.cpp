#include "runtime/cuda/cuda_event.h"

#include "runtime/cuda/cuda_end_of_life.h"
#include "runtime/device/call_faults.h"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>

namespace gravure {

bool isCapturing(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  const cudaError_t error = cudaStreamIsCapturing(stream, &status);
  if (error == cudaErrorStreamCaptureImplicit) {  // the default stream, beside one that is captured
    (void)cudaGetLastError();
    return true;
  }
  C10_CUDA_CHECK(error);
  return status != cudaStreamCaptureStatusNone;
}

CudaEvent::~CudaEvent() {
  if (event_ == nullptr) return;
  const UnseenByCaptures unseen;
  warnAtEnd("the end of an event", cudaEventDestroy(event_));
}

void CudaEvent::record(c10::cuda::CUDAStream stream) {
  const c10::cuda::CUDAGuard here(stream.device_index());
  if (event_ == nullptr) {
    passCall("the making of an event");
    C10_CUDA_CHECK(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming));
    device_ = stream.device_index();
  }
  passCall("an event");
  C10_CUDA_CHECK(cudaEventRecord(event_, stream));
}

void CudaEvent::block(c10::cuda::CUDAStream stream) const {
  if (event_ == nullptr) return;
  const c10::cuda::CUDAGuard here(stream.device_index());
  passCall("a wait for an event");
  C10_CUDA_CHECK(cudaStreamWaitEvent(stream, event_, 0));
}

bool CudaEvent::query() const {
  if (event_ == nullptr) return true;
  const UnseenByCaptures unseen;
  const cudaError_t error = cudaEventQuery(event_);
  if (error != cudaErrorNotReady) C10_CUDA_CHECK(error);
  if (error != cudaSuccess) (void)cudaGetLastError();
  return error == cudaSuccess;
}

void CudaEvent::synchronize() const {
  if (event_ == nullptr) return;
  const UnseenByCaptures unseen;
  C10_CUDA_CHECK(cudaEventSynchronize(event_));
}

void order(c10::cuda::CUDAStream earlier, c10::cuda::CUDAStream later) {
  CudaEvent event;
  event.record(earlier);
  event.block(later);
}

bool tryOrder(c10::cuda::CUDAStream earlier, c10::cuda::CUDAStream later) {
  if (isCapturing(earlier)) return false;
  CudaEvent event;
  event.record(earlier);
  // Its capture may have begun in between; an event that nobody waits for does no harm there.
  if (isCapturing(earlier)) return false;
  event.block(later);
  return true;
}

LastWork::LastWork(const std::vector<c10::Stream>& streams) {
  for (const c10::Stream stream : streams) {
    streams_.push_back({c10::cuda::CUDAStream(stream), nullptr});
    (void)mark(streams_.back());
  }
}

/// False while the stream is being captured.
bool LastWork::mark(OfStream& each) noexcept {
  if (each.end) return true;
  auto end = std::make_unique<CudaEvent>();
  try {
    if (isCapturing(each.stream)) return false;
    const UnseenByCaptures unseen;
    end->record(each.stream);
  } catch (const std::exception&) {  // the GPU is lost: an event that was never recorded is reached
    (void)cudaGetLastError();
    end = std::make_unique<CudaEvent>();
  }
  each.end = std::move(end);
  return true;
}

bool LastWork::isDone() noexcept {
  const auto done = [this](OfStream& each) {
    if (!mark(each)) return false;
    const UnseenByCaptures unseen;
    const cudaError_t error =
        each.end->event_ == nullptr ? cudaSuccess : cudaEventQuery(each.end->event_);
    if (error == cudaSuccess) return true;
    (void)cudaGetLastError();
    if (error == cudaErrorCapturedEvent) each.end.reset();  // a capture began as it was recorded
    return error != cudaErrorNotReady && error != cudaErrorCapturedEvent;
  };
  while (!streams_.empty() && done(streams_.back())) streams_.pop_back();
  return streams_.empty();
}

bool LastWork::wait() noexcept {
  for (OfStream& each : streams_) {
    if (!mark(each)) return false;
    const UnseenByCaptures unseen;
    if (each.end->event_ != nullptr && cudaEventSynchronize(each.end->event_) != cudaSuccess) {
      (void)cudaGetLastError();
    }
  }
  return isDone();
}

}  // namespace gravure
