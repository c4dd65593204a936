#include "runtime/cuda/cuda_marker.h"

#include <c10/cuda/CUDAStream.h>

namespace gravure {

void CudaMarker::record() { event_.record(c10::cuda::getCurrentCUDAStream(device_)); }

bool CudaMarker::reached() { return event_.query(); }

}  // namespace gravure
