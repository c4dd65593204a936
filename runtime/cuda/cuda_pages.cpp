#include "runtime/cuda/cuda_pages.h"

#include "runtime/cuda/cuda_allocator.h"
#include "runtime/cuda/cuda_arena_stats.h"

#include <c10/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/util/Exception.h>
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <array>
#include <atomic>
#include <map>
#include <mutex>
#include <numeric>
#include <set>
#include <utility>

namespace gravure {
namespace {

/// libcuda is not linked: a machine without a driver must load this library.
struct Driver {
  decltype(&cuGetErrorString) errorString;
  decltype(&cuDeviceGetAttribute) attribute;
  decltype(&cuMemGetAllocationGranularity) granularity;
  decltype(&cuMemAddressReserve) reserve;
  decltype(&cuMemCreate) create;
  decltype(&cuMemRelease) release;
  decltype(&cuMemMap) map;
  decltype(&cuMemUnmap) unmap;
  decltype(&cuMemSetAccess) setAccess;

  static const Driver& get() {
    static const Driver driver = load();
    return driver;
  }

  void check(CUresult result, const char* what) const {
    if (result == CUDA_SUCCESS) return;
    const char* reason = nullptr;
    errorString(result, &reason);
    TORCH_CHECK(false, "CUDA's driver refuses ", what, ": ", reason ? reason : "no reason given");
  }

 private:
  template <typename Function>
  static void find(const char* name, Function& function) {
    void* found = nullptr;
    cudaDriverEntryPointQueryResult status = cudaDriverEntryPointSymbolNotFound;
    const cudaError_t error =
        cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, &status);
    TORCH_CHECK(error == cudaSuccess && status == cudaDriverEntryPointSuccess,
                "CUDA's driver has no ", name, ", which the arena needs: a newer driver has");
    function = reinterpret_cast<Function>(found);
  }

  static Driver load() {
    Driver driver{};
    find("cuGetErrorString", driver.errorString);
    find("cuDeviceGetAttribute", driver.attribute);
    find("cuMemGetAllocationGranularity", driver.granularity);
    find("cuMemAddressReserve", driver.reserve);
    find("cuMemCreate", driver.create);
    find("cuMemRelease", driver.release);
    find("cuMemMap", driver.map);
    find("cuMemUnmap", driver.unmap);
    find("cuMemSetAccess", driver.setAccess);
    return driver;
  }
};

/// The device is current and the thread's own capture, if there is one, takes no offence.
struct OnDevice {
  explicit OnDevice(c10::DeviceIndex index) : device(index), mode(cudaStreamCaptureModeRelaxed) {}
  c10::cuda::CUDAGuard device;
  c10::cuda::CUDAStreamCaptureModeGuard mode;
};

bool isCapturing(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  C10_CUDA_CHECK(cudaStreamIsCapturing(stream, &status));
  return status != cudaStreamCaptureStatusNone;
}

class CudaPageSource final : public PageSource {
 public:
  /// `openTo`: devices whose kernels may use the arenas.
  CudaPageSource(c10::DeviceIndex device, std::set<c10::DeviceIndex> openTo)
      : device_(device), openTo_(std::move(openTo)) {
    openTo_.insert(device);
    int direct = 0;
    driver_.attribute(&direct, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, device);
    properties_.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties_.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
    properties_.allocFlags.gpuDirectRDMACapable = direct != 0;
    size_t least = 0;
    driver_.check(driver_.granularity(&least, &properties_, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
                  "to say how small a page may be");
    while (small_ < static_cast<int64_t>(least)) small_ *= 2;
  }

  int64_t largePage() const override { return 16 * small_; }
  int64_t smallPage() const override { return small_; }

  Addresses reserve() override {
    const OnDevice here(device_);
    CUdeviceptr at = 0;
    CUresult result = CUDA_SUCCESS;
    for (int64_t bytes = int64_t{1} << 44; bytes >= int64_t{1} << 38; bytes /= 2) {
      result = driver_.reserve(&at, bytes, int64_t{1} << 28, 0, 0);
      if (result == CUDA_SUCCESS) return {reinterpret_cast<char*>(at), bytes};
    }
    driver_.check(result, "addresses for the arena");
    return {};
  }

  std::vector<PageHandle> create(const std::vector<int64_t>& sizes) override {
    if (sizes.empty()) return {};
    const OnDevice here(device_);
    const int64_t bytes = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
    if (bytes > availableMemory(device_)) CudaAllocator::install().base().emptyCache({0, 0});
    if (const int64_t rest = availableMemory(device_); bytes > rest) failFor(bytes, rest);
    std::vector<PageHandle> made;
    for (const int64_t size : sizes) {
      CUmemGenericAllocationHandle handle = 0;
      const CUresult result = driver_.create(&handle, size, &properties_, 0);
      if (result == CUDA_SUCCESS) {
        made.push_back(handle);
        continue;
      }
      for (const PageHandle each : made) driver_.release(each);
      if (result == CUDA_ERROR_OUT_OF_MEMORY) failFor(bytes, availableMemory(device_));
      driver_.check(result, "memory for the arena");
    }
    CudaAllocator::install().stats(device_).add(bytes);
    return made;
  }

  void destroy(PageHandle handle, int64_t bytes) override {
    driver_.release(handle);
    CudaAllocator::install().stats(device_).add(-bytes);
  }

  void map(const std::vector<Piece>& pieces) override {
    const OnDevice here(device_);
    for (const Piece& piece : pieces) {
      const auto at = reinterpret_cast<CUdeviceptr>(piece.at);
      driver_.check(driver_.map(at, piece.bytes, 0, piece.handle, 0), "to map the arena's pages");
    }
    const std::vector<c10::DeviceIndex> all(openTo_.begin(), openTo_.end());
    for (size_t i = 0; i < pieces.size();) {
      char* const begin = pieces[i].at;
      char* end = begin;
      while (i < pieces.size() && pieces[i].at == end) end += pieces[i++].bytes;
      open(begin, end - begin, all);
    }
  }

  void unmap(char* at, int64_t bytes) override {
    // An error here means that the driver is gone, and the memory with it: the process ends.
    (void)driver_.unmap(reinterpret_cast<CUdeviceptr>(at), bytes);
  }

  void openTo(c10::DeviceIndex device, const std::vector<Piece>& mapped) {
    const OnDevice here(device_);
    if (!openTo_.insert(device).second) return;
    for (const Piece& piece : mapped) open(piece.at, piece.bytes, {device});
  }

  c10::Stream currentStream() const override {
    return c10::cuda::getCurrentCUDAStream(device_).unwrap();
  }

  void order(c10::Stream earlier, c10::Stream later) override {
    const OnDevice here(device_);
    c10::cuda::CUDAEvent event;
    event.record(c10::cuda::CUDAStream(earlier));
    event.block(c10::cuda::CUDAStream(later));
  }

  /// Stream by stream: a device cannot be waited for while any of its streams is being captured.
  void finish(const std::vector<c10::Stream>& streams) override {
    const OnDevice here(device_);
    for (const c10::Stream each : streams) {
      const c10::cuda::CUDAStream stream(each);
      TORCH_CHECK(!isCapturing(stream), "pages of an arena are in use on a stream that is being "
                                        "captured");
      C10_CUDA_CHECK(cudaStreamSynchronize(stream));
    }
  }

 private:
  [[noreturn]] void failFor(int64_t bytes, int64_t available) const {
    failForMemory("CUDA out of memory: the arena needs " + std::to_string(bytes >> 20) +
                      " MiB more on cuda:" + std::to_string(device_) +
                      ", with PyTorch's cache emptied",
                  bytes - available);
  }

  void open(char* at, int64_t bytes, const std::vector<c10::DeviceIndex>& devices) const {
    std::vector<CUmemAccessDesc> access;
    for (const c10::DeviceIndex device : devices) {
      access.push_back({{CU_MEM_LOCATION_TYPE_DEVICE, device}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE});
    }
    driver_.check(
        driver_.setAccess(reinterpret_cast<CUdeviceptr>(at), bytes, access.data(), access.size()),
        "access to the arena");
  }

  const Driver& driver_ = Driver::get();
  const c10::DeviceIndex device_;
  CUmemAllocationProp properties_{};
  int64_t small_ = int64_t{2} << 20;
  std::set<c10::DeviceIndex> openTo_;
};

/// By device. Never destroyed.
struct Arenas {
  std::mutex mutex;
  std::array<std::atomic<ArenaPages*>, 64> pages{};
  std::atomic<size_t> devices{0};  // that have arenas are among the first so many
  std::map<c10::DeviceIndex, std::set<c10::DeviceIndex>> openTo;  // by owner

  static Arenas& get() {
    static auto* arenas = new Arenas;
    return *arenas;
  }
};

}  // namespace

ArenaPages& cudaPages(c10::DeviceIndex device) {
  Arenas& all = Arenas::get();
  const auto index = static_cast<size_t>(device);
  if (ArenaPages* pages = all.pages.at(index).load(std::memory_order_acquire)) return *pages;
  std::lock_guard lock(all.mutex);
  if (all.pages[index].load() == nullptr) {
    auto source = std::make_unique<CudaPageSource>(device, all.openTo[device]);
    all.pages[index].store(new ArenaPages(std::move(source)));
    all.devices.store(std::max(all.devices.load(), index + 1));
  }
  return *all.pages[index].load();
}

ArenaPages* knownCudaPages(c10::DeviceIndex device) {
  return Arenas::get().pages.at(static_cast<size_t>(device)).load(std::memory_order_acquire);
}

ArenaPages* cudaPagesAt(const void* address) {
  Arenas& all = Arenas::get();
  const size_t devices = all.devices.load(std::memory_order_acquire);
  for (size_t i = 0; i < devices; ++i) {
    ArenaPages* pages = all.pages[i].load(std::memory_order_acquire);
    if (pages != nullptr && pages->contains(address)) return pages;
  }
  return nullptr;
}

std::string whyNoPages(c10::DeviceIndex device) {
  if (withoutVirtualMemory()) return "GRAVURE_NO_VIRTUAL_MEMORY is set";
  try {
    const Driver& driver = Driver::get();
    int managed = 0;
    driver.check(
        driver.attribute(&managed, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, device),
        "to be asked for its virtual memory management");
    return managed ? "" : "cuda:" + std::to_string(device) + " has no virtual memory management";
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
}

int64_t availableMemory(c10::DeviceIndex device) {
  const OnDevice here(device);
  size_t free = 0, total = 0;
  C10_CUDA_CHECK(cudaMemGetInfo(&free, &total));
  CudaAllocator& allocator = CudaAllocator::install();
  const double share = allocator.base().getMemoryFraction(device);
  if (share >= 1) return static_cast<int64_t>(free);
  const int64_t taken = allocator.stats(device).withArenas().reserved_bytes[0].current;
  const auto most = static_cast<int64_t>(share * static_cast<double>(total));
  return std::min(static_cast<int64_t>(free), most - taken);
}

void openArenasTo(c10::DeviceIndex owner, c10::DeviceIndex device) {
  Arenas& all = Arenas::get();
  std::lock_guard lock(all.mutex);
  all.openTo[owner].insert(device);
  ArenaPages* pages = all.pages.at(static_cast<size_t>(owner)).load();
  if (pages == nullptr) return;
  std::lock_guard still(*pages);
  static_cast<CudaPageSource&>(pages->source()).openTo(device, pages->mapped());
}

}  // namespace gravure
