#include "runtime/host_slab.h"

#include <c10/util/Exception.h>

#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstring>
#include <mutex>

namespace gravure {
namespace {

constexpr size_t kChunkBits = 28;  // 256 MiB
constexpr size_t kChunkBytes = size_t{1} << kChunkBits;
constexpr size_t kChunks = 4096;  // 1 TiB of addresses; no memory until mapped

struct Range {
  std::atomic<int64_t> references{1};
  size_t firstChunk = 0;
  size_t chunks = 0;
  size_t mapped = 0;
};

/// The reservation. Never destroyed: tensors of static storage duration may outlive everything.
class Reservation {
 public:
  static Reservation& instance() {
    static auto* reservation = new Reservation();
    return *reservation;
  }

  bool contains(const void* address) const {
    return static_cast<size_t>(static_cast<const char*>(address) - base_) < kChunkBytes * kChunks;
  }
  char* base() const { return base_; }
  Range& rangeOf(const void* address) {
    const size_t offset = static_cast<const char*>(address) - base_;
    return *owner_[offset >> kChunkBits].load(std::memory_order_acquire);
  }

  Range& map(size_t bytes) {
    const size_t chunks = (bytes + kChunkBytes - 1) >> kChunkBits;
    std::lock_guard<std::mutex> lock(mutex_);
    const size_t first = findFree(chunks);
    const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    const size_t mapped = (bytes + page - 1) / page * page;
    char* start = base_ + (first << kChunkBits);
    TORCH_CHECK(mprotect(start, mapped, PROT_READ | PROT_WRITE) == 0, "the arena needs ", bytes,
                " bytes, which this machine does not have");
    auto* range = new Range();
    range->firstChunk = first;
    range->chunks = chunks;
    range->mapped = mapped;
    for (size_t i = 0; i < chunks; ++i) owner_[first + i].store(range, std::memory_order_release);
    live_.fetch_add(1);
    return *range;
  }

  void release(Range& range) {
    if (range.references.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
    std::lock_guard<std::mutex> lock(mutex_);
    char* start = base_ + (range.firstChunk << kChunkBits);
    // A fresh mapping over the old one gives the pages back and makes late accesses fault.
    mmap(start, range.mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED,
         -1, 0);
    for (size_t i = 0; i < range.chunks; ++i) owner_[range.firstChunk + i].store(nullptr);
    live_.fetch_sub(1);
    delete &range;
  }

  int64_t live() const { return live_.load(); }

 private:
  Reservation() {
    void* at = mmap(nullptr, kChunkBytes * kChunks, PROT_NONE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    TORCH_CHECK(at != MAP_FAILED, "no addresses for the arena: is `ulimit -v` set?");
    base_ = static_cast<char*>(at);
  }

  size_t findFree(size_t chunks) const {
    size_t run = 0;
    for (size_t i = 0; i < kChunks; ++i) {
      run = owner_[i].load(std::memory_order_relaxed) ? 0 : run + 1;
      if (run == chunks) return i + 1 - chunks;
    }
    TORCH_CHECK(
        false, "the arena's range of addresses is full: ", chunks,
        " chunks of 256 MiB wanted; drop runtimes, or results that keep their memory alive");
  }

  char* base_ = nullptr;
  std::array<std::atomic<Range*>, kChunks> owner_{};
  std::mutex mutex_;
  std::atomic<int64_t> live_{0};
};

class HostSlab final : public Slab {
 public:
  explicit HostSlab(int64_t bytes)
      : range_(Reservation::instance().map(static_cast<size_t>(std::max<int64_t>(bytes, 1)))),
        bytes_(bytes) {}
  ~HostSlab() override { Reservation::instance().release(range_); }
  char* base() const override {
    return Reservation::instance().base() + (range_.firstChunk << kChunkBits);
  }
  int64_t bytes() const override { return bytes_; }

 private:
  Range& range_;
  int64_t bytes_;
};

}  // namespace

std::shared_ptr<Slab> makeHostSlab(int64_t bytes) { return std::make_shared<HostSlab>(bytes); }

bool inHostArena(const void* address) { return Reservation::instance().contains(address); }

void retainHostArena(const void* address) {
  Reservation::instance().rangeOf(address).references.fetch_add(1, std::memory_order_relaxed);
}

void releaseHostArena(const void* address) {
  Reservation& reservation = Reservation::instance();
  reservation.release(reservation.rangeOf(address));
}

int64_t liveHostSlabs() { return Reservation::instance().live(); }

}  // namespace gravure
