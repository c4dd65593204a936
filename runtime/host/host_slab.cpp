#include "runtime/host/host_slab.h"

#include "runtime/device/call_faults.h"

#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>
#include <c10/util/Exception.h>

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <map>
#include <numeric>

namespace gravure {
namespace {

// Addresses, without memory until they are mapped: fewer under `ulimit -v`, or a tool such as valgrind.
constexpr int64_t kMostReserved = int64_t{1} << 40;
constexpr int64_t kLeastReserved = int64_t{1} << 32;

/// Pages are places in a memory file.
class HostPageSource final : public PageSource {
 public:
  int64_t largePage() const override { return int64_t{1} << 20; }
  int64_t smallPage() const override { return sysconf(_SC_PAGESIZE); }

  Addresses reserve() override {
    constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    for (int64_t bytes = kMostReserved; bytes >= kLeastReserved; bytes /= 2) {
      void* at = mmap(nullptr, bytes, PROT_NONE, kFlags, -1, 0);
      if (at != MAP_FAILED) return {static_cast<char*>(at), bytes};
    }
    TORCH_CHECK(false, "no addresses for the arena: is `ulimit -v` set?");
  }

  std::vector<PageHandle> create(const std::vector<int64_t>& sizes) override {
    if (sizes.empty()) return {};
    const int64_t wanted = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
    const int64_t left = limit_.load() - taken_;
    if (wanted > left) {
      failForMemory("out of memory: the arena needs " + std::to_string(wanted) +
                        " bytes more on the host device",
                    wanted - left);
    }
    passCall("the making of pages");
    std::vector<PageHandle> made;
    int64_t end = end_;
    for (int64_t bytes : sizes) {
      auto& free = free_[bytes];
      if (!free.empty()) {
        made.push_back(free.back());
        free.pop_back();
        continue;
      }
      made.push_back(static_cast<PageHandle>(end));
      end += bytes;
    }
    if (end != end_) {
      openFile();
      TORCH_CHECK(ftruncate(file_, end) == 0, "the arena needs ", end - end_,
                  " bytes more, which this machine does not have: ", std::strerror(errno));
      end_ = end;
    }
    taken_ += wanted;
    return made;
  }

  void destroy(PageHandle handle, int64_t bytes) override {
    const auto at = static_cast<off_t>(handle);
    fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, at, bytes);
    free_[bytes].push_back(handle);
    taken_ -= bytes;
  }

  void map(const std::vector<Piece>& pieces) override {
    size_t mapped = 0;
    try {
      for (; mapped < pieces.size(); ++mapped) {
        passCall("the mapping of pages");
        mapOne(pieces[mapped]);
      }
    } catch (...) {
      for (size_t i = 0; i < mapped; ++i) unmap(pieces[i].at, pieces[i].bytes);
      throw;
    }
  }

  /// Addresses without pages fault.
  void unmap(char* at, int64_t bytes) override {
    constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
    const auto succeeds = [&] {
      return callSucceeds("the unmapping of pages") &&
             mmap(at, bytes, PROT_NONE, kFlags, -1, 0) != MAP_FAILED;
    };
    if (!succeeds()) (void)succeeds();
  }

  c10::Stream currentStream() const override {
    return c10::Stream(c10::Stream::DEFAULT, c10::Device(c10::kCPU));
  }
  bool order(c10::Stream, c10::Stream) override { return true; }
  void finish(const std::vector<c10::Stream>&) override {}

  void limit(int64_t bytes) { limit_.store(bytes); }

  /// In a child: what is mapped becomes its own copy, and new pages come from a file of its own.
  void leaveParent(ArenaPages& pages) {
    if (file_ < 0) return;
    ofChild_ = true;
    for (const Piece& piece : pages.mapped()) mapOne(piece);
    ofChild_ = false;
    close(file_);
    file_ = -1;
    openFile();
    (void)!ftruncate(file_, end_);
  }

 private:
  void mapOne(const Piece& piece) {
    const int kind = ofChild_ ? MAP_PRIVATE : MAP_SHARED;
    void* at = mmap(piece.at, piece.bytes, PROT_READ | PROT_WRITE, kind | MAP_FIXED, file_,
                    static_cast<off_t>(piece.handle));
    TORCH_CHECK(at != MAP_FAILED, "the arena's memory cannot be mapped: ", std::strerror(errno));
  }

  void openFile() {
    if (file_ >= 0) return;
    file_ = memfd_create("gravure-arena", MFD_CLOEXEC);
    TORCH_CHECK(file_ >= 0, "no memory file for the arena: ", std::strerror(errno));
  }

  int file_ = -1;
  int64_t end_ = 0;
  int64_t taken_ = 0;
  std::atomic<int64_t> limit_{kMostReserved};
  bool ofChild_ = false;
  std::map<int64_t, std::vector<PageHandle>> free_;  // by size
};

/// Plain memory of the machine.
class HostBlockSource final : public BlockSource {
 public:
  c10::DataPtr allocate(int64_t bytes) override {
    passCall("the allocation of a block");
    void* address = c10::alloc_cpu(static_cast<size_t>(bytes));
    return {address, address, &c10::free_cpu, c10::Device(c10::kCPU)};
  }
  c10::Stream currentStream() const override {
    return c10::Stream(c10::Stream::DEFAULT, c10::Device(c10::kCPU));
  }
  bool order(c10::Stream, c10::Stream) override { return true; }
  void usedOn(const c10::DataPtr&, c10::Stream) override {}
};

}  // namespace

ArenaBlocks& hostBlocks() {
  static auto* blocks = new ArenaBlocks(std::make_unique<HostBlockSource>());
  return *blocks;
}

void limitHostMemory(int64_t bytes) {
  static_cast<HostPageSource&>(hostPages().source()).limit(bytes);
}

ArenaPages& hostPages() {
  static auto* pages = [] {
    auto* made = new ArenaPages(std::make_unique<HostPageSource>());
    pthread_atfork([] { hostPages().lock(); }, [] { hostPages().unlock(); },
                   [] {
                     static_cast<HostPageSource&>(hostPages().source()).leaveParent(hostPages());
                     hostPages().unlock();
                   });
    return made;
  }();
  return *pages;
}

}  // namespace gravure
