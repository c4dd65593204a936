#include "runtime/cuda/cuda_marker.h"

#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAStream.h>

namespace gravure {

void CudaMarker::place() { event_.record(c10::cuda::getCurrentCUDAStream(device_)); }

bool CudaMarker::reached() {
  // In its own mode, so that the query breaks no capture that another thread makes.
  c10::cuda::CUDAStreamCaptureModeGuard mode(cudaStreamCaptureModeRelaxed);
  return event_.query();
}

}  // namespace gravure
