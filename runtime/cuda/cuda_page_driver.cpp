#include "runtime/cuda/cuda_page_driver.h"

#include "runtime/device/call_faults.h"
#include "runtime/device/device.h"

#include <c10/cuda/CUDAFunctions.h>
#include <c10/util/Exception.h>
#include <cuda_runtime_api.h>

#include <algorithm>

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

CUdeviceptr addressOf(char* at) { return reinterpret_cast<CUdeviceptr>(at); }

}  // namespace

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

PageDriver::PageDriver(c10::DeviceIndex device) : device_(device) {
  const Driver& driver = Driver::get();
  int direct = 0;
  driver.attribute(&direct, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, device);
  properties_.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties_.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
  properties_.allocFlags.gpuDirectRDMACapable = direct != 0;
  size_t least = 0;
  driver.check(driver.granularity(&least, &properties_, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
               "to say how small a page may be");
  while (small_ < static_cast<int64_t>(least)) small_ *= 2;
}

PageSource::Addresses PageDriver::reserve(const Reservation& wanted) const {
  const DeviceScope here(device_);
  const Driver& driver = Driver::get();
  CUdeviceptr at = 0;
  CUresult result = CUDA_SUCCESS;
  const int64_t devices = std::max<int64_t>(c10::cuda::device_count(), 1);
  int64_t bytes = wanted.most;
  while (bytes > wanted.least && bytes * devices > wanted.all) bytes /= 2;
  for (; bytes >= wanted.least; bytes /= 2) {
    result = driver.reserve(&at, bytes, int64_t{1} << 28, 0, 0);
    if (result == CUDA_SUCCESS) return {reinterpret_cast<char*>(at), bytes};
  }
  driver.check(result, "addresses for memory of programs (is `ulimit -v` set?)");
  return {};
}

PageHandle PageDriver::create(int64_t bytes) const {
  passCall("the making of pages");
  const DeviceScope here(device_);
  CUmemGenericAllocationHandle handle = 0;
  const CUresult result = Driver::get().create(&handle, bytes, &properties_, 0);
  if (result == CUDA_ERROR_OUT_OF_MEMORY) return 0;
  Driver::get().check(result, "memory for the arena");
  return handle;
}

// An error of the next two means that the driver is gone, and the memory with it: the process ends.

void PageDriver::destroy(PageHandle handle) const { (void)Driver::get().release(handle); }

void PageDriver::unmap(char* at, int64_t bytes) const {
  const auto succeeds = [&] {
    return callSucceeds("the unmapping of pages") &&
           Driver::get().unmap(addressOf(at), bytes) == CUDA_SUCCESS;
  };
  // What stays mapped keeps its memory, and nothing else can be mapped there: it is tried once more.
  if (!succeeds()) (void)succeeds();
}

void PageDriver::map(const std::vector<PageSource::Piece>& pieces,
                     const std::set<c10::DeviceIndex>& devices) const {
  const DeviceScope here(device_);
  const Driver& driver = Driver::get();
  size_t mapped = 0;
  try {
    for (; mapped < pieces.size(); ++mapped) {
      const PageSource::Piece& piece = pieces[mapped];
      passCall("the mapping of pages");
      driver.check(driver.map(addressOf(piece.at), piece.bytes, 0, piece.handle, 0),
                   "to map the arena's pages");
    }
    for (size_t i = 0; i < pieces.size();) {
      char* const begin = pieces[i].at;
      char* end = begin;
      while (i < pieces.size() && pieces[i].at == end) end += pieces[i++].bytes;
      open(begin, end - begin, devices);
    }
  } catch (...) {
    for (size_t i = 0; i < mapped; ++i) unmap(pieces[i].at, pieces[i].bytes);
    throw;
  }
}

void PageDriver::open(char* at, int64_t bytes, const std::set<c10::DeviceIndex>& devices) const {
  std::vector<CUmemAccessDesc> access;
  for (const c10::DeviceIndex device : devices) {
    access.push_back({{CU_MEM_LOCATION_TYPE_DEVICE, device}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE});
  }
  const Driver& driver = Driver::get();
  passCall("the opening of pages");
  driver.check(driver.setAccess(addressOf(at), bytes, access.data(), access.size()),
               "access to the arena");
}

}  // namespace gravure
