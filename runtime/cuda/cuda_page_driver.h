#pragma once
// Pages and addresses of a GPU, by the driver's virtual memory management.

#include "runtime/arena/arena_pages.h"

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

/// Why `device` cannot map pages; "" if it can. GRAVURE_NO_VIRTUAL_MEMORY=1 is a reason.
std::string whyNoPages(c10::DeviceIndex device);

/// How many bytes of addresses: `all` of them shared by the GPUs that the process sees, `most` and at the
/// least `least` for one. A process has 2^47, and other allocators of eight GPUs want some as well.
struct Reservation {
  int64_t all = 0, most = 0, least = 0;
};

/// None of its calls waits for work in flight, unlike cudaFree: whoever unmaps or destroys must know
/// that the work on a page is done.
class PageDriver {
 public:
  explicit PageDriver(c10::DeviceIndex device);

  c10::DeviceIndex device() const { return device_; }
  int64_t largePage() const { return 16 * small_; }
  int64_t smallPage() const { return small_; }

  /// Addresses with nothing behind them: as many as there are. c10::Error if those are too few.
  PageSource::Addresses reserve(const Reservation& wanted) const;
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
