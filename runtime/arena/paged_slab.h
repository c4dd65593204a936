#pragma once
// One arena on shared pages, as ArenaPages keeps it.

#include "runtime/arena/arena_pages.h"
#include "runtime/results/loan_book.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <optional>

namespace gravure {

/// Alive as long as its Slab handle, or a tensor that was retained by its address.
class PagedSlab final : public Slab {
 public:
  PagedSlab(ArenaPages& owner, const ArenaShape& shape) : owner_(owner), shape_(shape) {}

  char* base() const override { return base_; }
  int64_t bytes() const override { return shape_.bytes; }
  bool enter(size_t entry, std::string& why) override { return owner_.enter(*this, entry, why); }
  void leave() override { owner_.leave(*this); }
  void follow() override { owner_.follow(*this); }
  bool mayHaveChanged() const override { return owner_.mayHaveChanged(*this); }
  void joinInFlight(std::shared_ptr<const void> with) override {
    owner_.joinInFlight(*this, std::move(with));
  }
  void setInFlightWith(std::shared_ptr<const void> with) { shape_.inFlightWith = std::move(with); }

  void retain() { references_.fetch_add(1, std::memory_order_relaxed); }
  void release() {
    if (references_.fetch_sub(1, std::memory_order_acq_rel) == 1) owner_.drop(*this);
  }

  pid_t process() const { return process_; }

  /// The parts that somebody holds now. More cannot become held but by a step.
  ArenaParts held() const {
    ArenaParts parts = kNoPart;
    if (lastWork) return parts;
    if (shape_.savedBook && shape_.savedBook->outstanding() > 0) parts |= kSavedPart;
    if (shape_.resultsStay) return parts | kFirstResultsPart | kLaterResultsPart;
    for (size_t entry = 0; entry < shape_.resultBooks.size(); ++entry) {
      const auto& books = shape_.resultBooks[entry];
      const bool lent = std::any_of(books.begin(), books.end(),
                                    [](const auto& book) { return book->outstanding() > 0; });
      if (lent) parts |= resultsOfEntry(entry);
    }
    return parts;
  }
  /// Streams that read saved values lent from outside the arena since the last call.
  std::vector<c10::Stream> takeOtherReaders() const {
    return shape_.savedBook ? shape_.savedBook->takeReaders() : std::vector<c10::Stream>();
  }
  /// The parts whose bytes mean something now.
  ArenaParts living() const {
    const bool asked = running || mayBeHeld || shape_.resultsStay;
    return asked ? running | held() : kNoPart;
  }

  std::vector<PageSharing::Want> wants(int64_t large, int64_t small) const {
    std::vector<PageSharing::Want> pages;
    const int64_t all = (shape_.bytes + small - 1) / small * small;
    for (int64_t at = 0; at < all;) {
      const bool fits = all - at >= large && !hasSmallPagesAlone();
      const int64_t size = fits ? large : small;
      pages.push_back({size, partsIn(at, at + size)});
      at += size;
    }
    return pages;
  }
  /// Whether both are arenas of one graph's calls in flight.
  bool isInFlightWith(const PagedSlab& other) const {
    return shape_.inFlightWith && isInFlightWith(other.shape_.inFlightWith);
  }
  bool isInFlightWith(const std::shared_ptr<const void>& with) const {
    return shape_.inFlightWith == with;
  }

  /// Where many arenas hold something between their steps, a page of which a little is held would be lost to all
  /// others, and what one uses for a while lies where others hold something later: on pages of one size.
  bool hasSmallPagesAlone() const { return shape_.amongMany || shape_.inFlightWith; }

  // Guarded by the owner's mutex.
  PageSharing::Tenant tenant = -1;
  size_t firstChunk = 0, chunks = 0;
  ArenaParts running = kNoPart;  // what a step uses now
  bool mayBeHeld = false;        // since the last step that used it
  bool unfit = true;             // pages are missing, or a page breaks a rule
  bool ofOldSizes = false;       // it has pages of sizes that wants() does not ask for any more
  bool moved = false;            // some pages are others than in the last step that used it
  int64_t patience = 0;          // steps until memory for it is asked for again
  uint64_t lastStep = 0;         // the owner's count
  std::array<uint64_t, 2> lastStepOf = {};  // of the first entry, and of the others
  std::optional<c10::Stream> lastStream;
  std::vector<c10::Stream> readers;
  std::unique_ptr<PageSource::Work> lastWork;  // once nobody has the arena any more
  char* base_ = nullptr;

 private:
  ArenaParts partsIn(int64_t begin, int64_t end) const {
    const auto meets = [&](const std::vector<Extent>& extents) {
      return std::any_of(extents.begin(), extents.end(), [&](const Extent& extent) {
        return extent.begin < end && begin < extent.end;
      });
    };
    ArenaParts parts = kNoPart;
    if (meets(shape_.saved)) parts |= kSavedPart;
    for (size_t entry = 0; entry < shape_.results.size(); ++entry) {
      if (meets(shape_.results[entry])) parts |= resultsOfEntry(entry);
    }
    if (shape_.used.empty()) parts |= kFirstEntryPart | kLaterEntriesPart;
    for (size_t entry = 0; entry < shape_.used.size(); ++entry) {
      if (meets(shape_.used[entry])) parts |= partOfEntry(entry);
    }
    return parts;
  }

  ArenaPages& owner_;
  ArenaShape shape_;
  const pid_t process_ = getpid();
  std::atomic<int64_t> references_{1};
};

}  // namespace gravure
