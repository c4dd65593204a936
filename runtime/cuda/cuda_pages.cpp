#include "runtime/cuda/cuda_pages.h"

#include "runtime/cuda/cuda_allocator.h"
#include "runtime/cuda/cuda_arena_stats.h"
#include "runtime/cuda/cuda_ended_pools.h"
#include "runtime/cuda/cuda_event.h"
#include "runtime/cuda/cuda_page_driver.h"
#include "runtime/cuda/cuda_spare_pools.h"
#include "runtime/cuda/cuda_warm_up_memory.h"

#include <c10/util/Exception.h>

#include <array>
#include <atomic>
#include <map>
#include <mutex>
#include <numeric>
#include <set>
#include <utility>

namespace gravure {
namespace {

class CudaWork final : public PageSource::Work {
 public:
  explicit CudaWork(const std::vector<c10::Stream>& streams) : work_(streams) {}
  bool isDone() noexcept override { return work_.isDone(); }
  bool wait() noexcept override { return work_.wait(); }

 private:
  LastWork work_;
};

class CudaPageSource final : public PageSource {
 public:
  /// `openTo`: devices whose kernels may use the arenas.
  CudaPageSource(c10::DeviceIndex device, std::set<c10::DeviceIndex> openTo)
      : driver_(device), openTo_(std::move(openTo)) {
    openTo_.insert(device);
  }

  int64_t largePage() const override { return driver_.largePage(); }
  int64_t smallPage() const override { return driver_.smallPage(); }

  Addresses reserve() override {
    return driver_.reserve({int64_t{1} << 45, int64_t{1} << 44, int64_t{1} << 38});
  }

  std::vector<PageHandle> create(const std::vector<int64_t>& sizes) override {
    if (sizes.empty()) return {};
    const int64_t bytes = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
    // Small pages cannot be the large ones that a warm-up has left.
    WarmUpMemory* const ended = WarmUpMemory::known(device());
    if (ended != nullptr && ended->hasEnded()) ended->giveBack();
    if (bytes > availableMemory(device())) {
      CudaAllocator& allocator = CudaAllocator::install();
      SparePools::of(device()).giveBack(allocator);
      (void)allocator.tryEmptyCache({0, 0});
      if (ended != nullptr) ended->giveBackWaiting();
    }
    if (const int64_t rest = availableMemory(device()); bytes > rest) failFor(bytes, rest);
    std::vector<PageHandle> made;
    try {
      for (const int64_t size : sizes) {
        made.push_back(driver_.create(size));
        if (made.back() == 0) failFor(bytes, availableMemory(device()));
      }
    } catch (...) {
      for (const PageHandle each : made) {
        if (each != 0) driver_.destroy(each);
      }
      throw;
    }
    CudaAllocator::install().stats(device()).add(bytes);
    return made;
  }

  void destroy(PageHandle handle, int64_t bytes) override {
    driver_.destroy(handle);
    CudaAllocator::install().stats(device()).add(-bytes);
  }

  void map(const std::vector<Piece>& pieces) override { driver_.map(pieces, openTo_); }
  void unmap(char* at, int64_t bytes) override { driver_.unmap(at, bytes); }

  void openTo(c10::DeviceIndex device, const std::vector<Piece>& mapped) {
    const DeviceScope here(driver_.device());
    if (!openTo_.insert(device).second) return;
    for (const Piece& piece : mapped) driver_.open(piece.at, piece.bytes, {device});
  }

  c10::Stream currentStream() const override {
    return c10::cuda::getCurrentCUDAStream(device()).unwrap();
  }

  bool order(c10::Stream earlier, c10::Stream later) override {
    const DeviceScope here(device());
    return tryOrder(c10::cuda::CUDAStream(earlier), c10::cuda::CUDAStream(later));
  }

  std::unique_ptr<Work> work(const std::vector<c10::Stream>& streams) override {
    return std::make_unique<CudaWork>(streams);
  }

  /// Stream by stream: a device cannot be waited for while any of its streams is being captured.
  void finish(const std::vector<c10::Stream>& streams) override {
    const DeviceScope here(device());
    for (const c10::Stream each : streams) {
      const c10::cuda::CUDAStream stream(each);
      TORCH_CHECK(!isCapturing(stream), "pages of an arena are in use on a stream that is being "
                                        "captured");
      C10_CUDA_CHECK(cudaStreamSynchronize(stream));
    }
  }

 private:
  c10::DeviceIndex device() const { return driver_.device(); }

  [[noreturn]] void failFor(int64_t bytes, int64_t available) const {
    failForMemory("CUDA out of memory: the arena needs " + std::to_string(bytes >> 20) +
                      " MiB more on cuda:" + std::to_string(device()) +
                      ", with PyTorch's cache emptied",
                  bytes - available);
  }

  const PageDriver driver_;
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

std::string whyNoArenaPages(c10::DeviceIndex device) {
  std::string why = whyNoPages(device);
  if (!why.empty()) return why;
  try {
    (void)cudaPages(device);
    return "";
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
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

int64_t availableMemory(c10::DeviceIndex device) {
  const DeviceScope here(device);
  size_t free = 0, total = 0;
  C10_CUDA_CHECK(cudaMemGetInfo(&free, &total));
  CudaAllocator& allocator = CudaAllocator::install();
  const double share = allocator.base().getMemoryFraction(device);
  if (share >= 1) return static_cast<int64_t>(free);
  const int64_t taken = allocator.stats(device).withArenas().reserved_bytes[0].current;
  const auto most = static_cast<int64_t>(share * static_cast<double>(total));
  return std::min(static_cast<int64_t>(free), most - taken);
}

int64_t releaseAtRest(c10::DeviceIndex device) {
  SparePools::of(device).giveBack(CudaAllocator::install());
  EndedPools::of(device).giveBack();
  WarmUpMemory* warmUps = WarmUpMemory::known(device);
  ArenaPages* arenas = knownCudaPages(device);
  return (warmUps == nullptr ? 0 : warmUps->giveBackWaiting()) +
         (arenas == nullptr ? 0 : arenas->releaseAtRest());
}

void releaseEnded(c10::DeviceIndex device) {
  if (WarmUpMemory* warmUps = WarmUpMemory::known(device)) warmUps->giveBackWaiting();
  if (ArenaPages* arenas = knownCudaPages(device)) arenas->releaseEnded();
}

void openArenasTo(c10::DeviceIndex owner, c10::DeviceIndex device) {
  Arenas& all = Arenas::get();
  std::lock_guard lock(all.mutex);
  all.openTo[owner].insert(device);
  if (WarmUpMemory* memory = WarmUpMemory::known(owner)) memory->openTo(device);
  ArenaPages* pages = all.pages.at(static_cast<size_t>(owner)).load();
  if (pages == nullptr) return;
  std::lock_guard still(*pages);
  static_cast<CudaPageSource&>(pages->source()).openTo(device, pages->mapped());
}

std::set<c10::DeviceIndex> openedTo(c10::DeviceIndex owner) {
  Arenas& all = Arenas::get();
  std::lock_guard lock(all.mutex);
  return all.openTo[owner];
}

}  // namespace gravure
