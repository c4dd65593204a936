#include "runtime/cuda/cuda_blocks.h"

#include "runtime/cuda/cuda_allocator.h"
#include "runtime/cuda/cuda_end_of_life.h"
#include "runtime/cuda/cuda_event.h"
#include "runtime/cuda/cuda_pages.h"

#include <c10/cuda/CUDAGuard.h>

#include <array>

namespace gravure {
namespace {

class CudaBlockSource final : public BlockSource {
 public:
  explicit CudaBlockSource(c10::DeviceIndex device) : device_(device) {}

  c10::DataPtr allocate(int64_t bytes) override {
    const c10::cuda::CUDAGuard here(device_);
    const ArenaBypass bypass;
    return CudaAllocator::install().allocate(static_cast<size_t>(bytes));
  }

  c10::Stream currentStream() const override {
    return c10::cuda::getCurrentCUDAStream(device_).unwrap();
  }

  bool order(c10::Stream earlier, c10::Stream later) override {
    const c10::cuda::CUDAGuard here(device_);
    return tryOrder(c10::cuda::CUDAStream(earlier), c10::cuda::CUDAStream(later));
  }

  void usedOn(const c10::DataPtr& block, c10::Stream stream) override {
    atEnd("keeping an arena until its work is done",
          [&] { CudaAllocator::install().recordStream(block, c10::cuda::CUDAStream(stream)); });
  }

 private:
  const c10::DeviceIndex device_;
};

/// By device. Never destroyed.
struct Blocks {
  std::mutex mutex;
  std::array<std::atomic<ArenaBlocks*>, 64> blocks{};
  std::atomic<size_t> devices{0};  // that have blocks are among the first so many

  static Blocks& get() {
    static auto* blocks = new Blocks;
    return *blocks;
  }
};

}  // namespace

ArenaBlocks& cudaBlocks(c10::DeviceIndex device) {
  Blocks& all = Blocks::get();
  const auto index = static_cast<size_t>(device);
  const std::lock_guard lock(all.mutex);
  if (all.blocks.at(index).load() == nullptr) {
    all.blocks[index].store(new ArenaBlocks(std::make_unique<CudaBlockSource>(device)));
    all.devices.store(std::max(all.devices.load(), index + 1));
  }
  return *all.blocks[index].load();
}

ArenaMemory* cudaArenasAt(const void* address) {
  if (ArenaPages* pages = cudaPagesAt(address)) return pages;
  Blocks& all = Blocks::get();
  const size_t devices = all.devices.load(std::memory_order_acquire);
  for (size_t i = 0; i < devices; ++i) {
    ArenaBlocks* blocks = all.blocks[i].load(std::memory_order_acquire);
    if (blocks != nullptr && blocks->contains(address)) return blocks;
  }
  return nullptr;
}

}  // namespace gravure
