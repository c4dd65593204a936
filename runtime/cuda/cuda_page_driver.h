#pragma once
// Pages and addresses of a GPU, by the driver's virtual memory management.

#include "runtime/arena_pages.h"

#include <c10/core/Device.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAGuard.h>
#include <cuda.h>

#include <set>
#include <string>
#include <vector>

namespace gravure {

/// The device is current and the thread's own capture, if there is one, takes no offence.
struct DeviceScope {
  explicit DeviceScope(c10::DeviceIndex index)
      : device(index), mode(cudaStreamCaptureModeRelaxed) {}
  c10::cuda::CUDAGuard device;
  c10::cuda::CUDAStreamCaptureModeGuard mode;
};

/// Whether `stream` can take no work now but for a graph that is being captured.
bool isCapturing(cudaStream_t stream);

/// Why `device` cannot map pages; "" if it can. GRAVURE_NO_VIRTUAL_MEMORY=1 is a reason.
std::string whyNoPages(c10::DeviceIndex device);

/// None of its calls waits for work in flight, unlike cudaFree: whoever unmaps or destroys must know
/// that the work on a page is done.
class PageDriver {
 public:
  explicit PageDriver(c10::DeviceIndex device);

  c10::DeviceIndex device() const { return device_; }
  int64_t largePage() const { return 16 * small_; }
  int64_t smallPage() const { return small_; }

  /// Addresses with nothing behind them: as many as there are, from `most` down to `least` bytes.
  PageSource::Addresses reserve(int64_t most, int64_t least) const;
  /// 0 if there is no memory for it.
  PageHandle create(int64_t bytes) const;
  void destroy(PageHandle handle) const;
  /// Puts pages behind addresses that have none, for kernels on all of `devices`. `pieces` ascend.
  void map(const std::vector<PageSource::Piece>& pieces,
           const std::set<c10::DeviceIndex>& devices) const;
  void unmap(char* at, int64_t bytes) const;
  /// Kernels on `devices`, too, may use what is mapped there.
  void open(char* at, int64_t bytes, const std::set<c10::DeviceIndex>& devices) const;

 private:
  const c10::DeviceIndex device_;
  CUmemAllocationProp properties_{};
  int64_t small_ = int64_t{2} << 20;
};

}  // namespace gravure
