#pragma once
// The memory behind the arenas of one device: addresses of their own for each, pages that they share.
//
// An arena never moves: captures keep its addresses. The physical pages behind it are chosen by
// PageSharing, and may change between two steps. So all programs of a device take about the memory of
// those that live at once, and what a program needs can be given back while it rests.

#include "runtime/arena/arena_memory.h"
#include "runtime/arena/page_sharing.h"

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace gravure {

/// A physical page, as its device knows it.
using PageHandle = uint64_t;

/// Physical memory and addresses of one device. Called by ArenaPages alone, one call at a time.
class PageSource {
 public:
  virtual ~PageSource() = default;
  /// Bytes of the two kinds of pages; the large one is a multiple of the small one.
  virtual int64_t largePage() const = 0;
  virtual int64_t smallPage() const = 0;

  /// Addresses for all arenas, with nothing behind them. Called once.
  struct Addresses {
    char* base = nullptr;
    int64_t bytes = 0;
  };
  virtual Addresses reserve() = 0;

  /// Pages of these sizes: all of them, or c10::Error saying how much is missing.
  virtual std::vector<PageHandle> create(const std::vector<int64_t>& sizes) = 0;
  virtual void destroy(PageHandle handle, int64_t bytes) = 0;

  struct Piece {
    char* at = nullptr;
    int64_t bytes = 0;
    PageHandle handle = 0;
  };
  /// Puts pages behind addresses that have none: all of them, or c10::Error. `pieces` ascend.
  virtual void map(const std::vector<Piece>& pieces) = 0;
  virtual void unmap(char* at, int64_t bytes) = 0;

  virtual c10::Stream currentStream() const = 0;
  /// What `later` gets next comes after what `earlier` holds now. False, and nothing is done, while
  /// `earlier` is being captured: `later` would become part of that capture.
  [[nodiscard]] virtual bool order(c10::Stream earlier, c10::Stream later) = 0;
  /// Waits for what the streams hold now.
  virtual void finish(const std::vector<c10::Stream>& streams) = 0;

  /// The work that streams held at some time. This one is of a device whose work is done at once.
  class Work {
   public:
    virtual ~Work() = default;
    virtual bool isDone() noexcept { return true; }
    /// False where it cannot be waited for now.
    virtual bool wait() noexcept { return true; }
  };
  /// What `streams` hold now.
  virtual std::unique_ptr<Work> work(const std::vector<c10::Stream>& /*streams*/) {
    return std::make_unique<Work>();
  }
};

class PagedSlab;

class ArenaPages final : public ArenaMemory {
 public:
  explicit ArenaPages(std::unique_ptr<PageSource> source);
  ~ArenaPages() override;

  /// An arena with pages behind it. c10::Error if there is no memory for it. `large`: pages of that
  /// size which are given to the arenas; what the current stream gets next may use them. Those that
  /// this one has no use for are destroyed.
  std::shared_ptr<Slab> make(const ArenaShape& shape, const std::vector<PageHandle>& large = {});

  /// Whether `address` lies in any arena; may be called from any thread at any time.
  bool contains(const void* address) const {
    return static_cast<size_t>(static_cast<const char*>(address) - addresses_.base) <
           static_cast<size_t>(addresses_.bytes);
  }
  void retain(const void* address) override;
  void release(const void* address) override;
  Extent arenaAt(const void* address) const override;
  void readOn(const void* address, c10::Stream stream) override;

  /// Unmaps what nobody holds and no step uses. Returns the bytes given back.
  int64_t releaseAtRest();
  /// The same for arenas that are gone alone; waits for the work on them.
  int64_t releaseEnded();
  /// Physical bytes, each page once.
  int64_t bytes() const;
  int64_t arenas() const { return arenas_.load(); }
  /// Addresses with pages behind them, as few extents as possible; each physical page once.
  std::vector<Extent> extents() const;

  PageSource& source() { return *source_; }
  /// Holds everything still: around fork(), and while the source is told something.
  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }
  /// All that is mapped, arena by arena. With the lock.
  std::vector<PageSource::Piece> mapped() const;

 private:
  friend class PagedSlab;
  bool enter(PagedSlab& slab, size_t entry, std::string& why);
  void leave(PagedSlab& slab);
  void follow(PagedSlab& slab);
  bool mayHaveChanged(const PagedSlab& slab) const;
  void joinInFlight(PagedSlab& slab, std::shared_ptr<const void> with);
  void drop(PagedSlab& slab) noexcept;
  bool destroyEnded(bool wait);
  void destroy(PagedSlab& slab);

  std::shared_ptr<Slab> makeUnfit(const ArenaShape& shape);
  void keep(PageSharing::Page page, PageHandle handle);
  PagedSlab& slabAt(const void* address) const;
  size_t takeChunks(PagedSlab& slab, int64_t bytes);
  void takeNewSizes(PagedSlab& slab);
  bool fit(PagedSlab& slab);
  bool hasAllPages(const PagedSlab& slab) const;
  void remap(PagedSlab& slab, const std::vector<PageSharing::Move>& moves);
  bool keepApartFromLiving(PagedSlab& slab, size_t entry);
  bool orderAfterOthers(PagedSlab& slab, size_t entry);
  void destroyUnused();

  const std::unique_ptr<PageSource> source_;
  const PageSource::Addresses addresses_;
  mutable std::mutex mutex_;
  PageSharing sharing_;
  std::vector<PageHandle> handles_;  // by page
  std::vector<PagedSlab*> slabs_;
  /// Nobody has them any more, but work may still use them.
  std::vector<std::unique_ptr<PagedSlab>> ended_;
  std::vector<std::atomic<PagedSlab*>> owners_;  // by chunk of addresses
  std::atomic<int64_t> arenas_{0};
  uint64_t steps_ = 0;
};

}  // namespace gravure
