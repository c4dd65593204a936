#include "runtime/arena/arena_pages.h"

#include "runtime/arena/paged_slab.h"

#include <c10/util/Exception.h>
#include <llvm/ADT/STLExtras.h>

#include <algorithm>
#include <functional>
#include <unordered_set>
#include <utility>

namespace gravure {
namespace {

constexpr int kChunkBits = 28;  // addresses are handed out in chunks of 256 MiB
constexpr int64_t kChunkBytes = int64_t{1} << kChunkBits;
/// Steps that a program without memory runs before its arena is tried again.
constexpr int64_t kPatience = 16;

}  // namespace

ArenaPages::ArenaPages(std::unique_ptr<PageSource> source)
    : source_(std::move(source)), addresses_(source_->reserve()),
      owners_(static_cast<size_t>(addresses_.bytes >> kChunkBits)) {
  TORCH_INTERNAL_ASSERT(source_->largePage() % source_->smallPage() == 0);
}

ArenaPages::~ArenaPages() = default;

std::shared_ptr<Slab> ArenaPages::make(const ArenaShape& shape,
                                       const std::vector<PageHandle>& large) {
  std::shared_ptr<Slab> slab;  // its end takes the lock, should this fail
  std::lock_guard lock(mutex_);
  destroyEnded(/*wait=*/false);
  for (const PageHandle handle : large) keep(sharing_.addPage(source_->largePage()), handle);
  try {
    slab = makeUnfit(shape);
    auto& paged = static_cast<PagedSlab&>(*slab);
    keepApartFromLiving(paged, shape.entered);
    fit(paged);
    // Work on the pages that were given is ordered before this stream's, and nothing yet before others'.
    if (!large.empty()) paged.lastStream = source_->currentStream();
  } catch (...) {
    destroyUnused();
    throw;
  }
  return slab;
}

/// Addresses for an arena, and nothing behind them.
std::shared_ptr<Slab> ArenaPages::makeUnfit(const ArenaShape& shape) {
  auto made = std::make_unique<PagedSlab>(*this, shape);
  const auto wants = made->wants(source_->largePage(), source_->smallPage());
  int64_t bytes = 0;
  for (const auto& want : wants) bytes += want.bytes;
  made->firstChunk = takeChunks(*made, bytes);
  made->base_ = addresses_.base + (static_cast<int64_t>(made->firstChunk) << kChunkBits);
  made->tenant = sharing_.add(wants);
  slabs_.push_back(made.get());
  arenas_.fetch_add(1);
  // A handle whose end is one reference less: tensors may hold others.
  return {made.release(), [](Slab* each) { static_cast<PagedSlab*>(each)->release(); }};
}

void ArenaPages::keep(PageSharing::Page page, PageHandle handle) {
  if (handles_.size() <= static_cast<size_t>(page)) handles_.resize(page + 1);
  handles_[page] = handle;
}

size_t ArenaPages::takeChunks(PagedSlab& slab, int64_t bytes) {
  slab.chunks = static_cast<size_t>((std::max<int64_t>(bytes, 1) + kChunkBytes - 1) >> kChunkBits);
  size_t free = 0;  // chunks up to here, one after another
  for (size_t i = 0; i < owners_.size(); ++i) {
    free = owners_[i].load(std::memory_order_relaxed) ? 0 : free + 1;
    if (free < slab.chunks) continue;
    const size_t first = i + 1 - slab.chunks;
    for (size_t c = first; c <= i; ++c) owners_[c].store(&slab, std::memory_order_release);
    return first;
  }
  TORCH_CHECK(false, "no addresses for an arena of ", bytes,
              " bytes; drop runtimes, or results that keep their memory alive");
}

PagedSlab& ArenaPages::slabAt(const void* address) const {
  const auto offset = static_cast<size_t>(static_cast<const char*>(address) - addresses_.base);
  PagedSlab* slab = owners_[offset >> kChunkBits].load(std::memory_order_acquire);
  TORCH_INTERNAL_ASSERT(slab != nullptr, "an address of no arena");
  return *slab;
}

void ArenaPages::retain(const void* address) { slabAt(address).retain(); }
void ArenaPages::release(const void* address) { slabAt(address).release(); }

Extent ArenaPages::arenaAt(const void* address) const {
  const PagedSlab& slab = slabAt(address);
  const auto begin = reinterpret_cast<int64_t>(slab.base());
  return {begin, begin + slab.bytes()};
}

void ArenaPages::readOn(const void* address, c10::Stream stream) {
  PagedSlab& slab = slabAt(address);
  std::lock_guard lock(mutex_);
  if (std::find(slab.readers.begin(), slab.readers.end(), stream) == slab.readers.end())
    slab.readers.push_back(stream);
}

/// Has what a run of `entry` uses, and what is held, lie apart from all that means something now. True if it
/// shared pages with some of that.
bool ArenaPages::keepApartFromLiving(PagedSlab& slab, size_t entry) {
  const ArenaParts own = partOfEntry(entry) | slab.held();
  bool met = false;
  for (PagedSlab* other : slabs_) {
    if (other == &slab) continue;
    const ArenaParts living = other->living();
    if (living == kNoPart) {
      other->mayBeHeld = false;
      continue;
    }
    met |= sharing_.meets(slab.tenant, other->tenant, living, own);
    sharing_.keepApart(slab.tenant, other->tenant, living, own);
    // The other one has saved values, so its backward is still to come, while what this one returns is held.
    // With calls in flight of one graph that is not known before: their gradients are added up.
    const bool nested = (living & kSavedPart) != 0 && !other->isInFlightWith(slab);
    const ArenaParts results = resultsOfEntry(entry);
    if (nested && sharing_.keepApart(other->tenant, slab.tenant, results, kLaterEntriesPart))
      other->unfit = true;
  }
  return met;
}

/// Gives the slab all its pages, by the rules. False if a held page breaks one: it stays, as its bytes would
/// be lost.
bool ArenaPages::fit(PagedSlab& slab) {
  std::vector<PageSharing::Move> moves;
  const bool kept = sharing_.choose(slab.tenant, slab.held(), moves);
  std::vector<int64_t> sizes;
  for (const PageSharing::Move& move : moves) {
    if (move.page == PageSharing::kNoPage)
      sizes.push_back(sharing_.wantsOf(slab.tenant)[move.index].bytes);
  }
  const std::vector<PageHandle> fresh = source_->create(sizes);
  size_t next = 0;
  for (PageSharing::Move& move : moves) {
    if (move.page != PageSharing::kNoPage) continue;
    move.page = sharing_.addPage(sizes[next]);
    keep(move.page, fresh[next++]);
  }
  remap(slab, moves);
  destroyUnused();
  slab.unfit = false;
  return kept;
}

void ArenaPages::remap(PagedSlab& slab, const std::vector<PageSharing::Move>& moves) {
  if (moves.empty()) return;
  const auto& wants = sharing_.wantsOf(slab.tenant);
  std::vector<int64_t> offsets;
  for (int64_t at = 0; const auto& want : wants) {
    offsets.push_back(at);
    at += want.bytes;
  }
  bool finished = false;
  for (const PageSharing::Move& move : moves) {
    if (sharing_.pagesOf(slab.tenant)[move.index] == PageSharing::kNoPage) continue;
    if (!std::exchange(finished, true)) {
      std::vector<c10::Stream> streams = slab.readers;
      streams.push_back(slab.lastStream.value_or(source_->currentStream()));
      source_->finish(streams);
    }
    sharing_.assign(slab.tenant, move.index, PageSharing::kNoPage);
    source_->unmap(slab.base_ + offsets[move.index], wants[move.index].bytes);
  }
  slab.unfit = slab.moved = true;  // unfit, should mapping fail
  slab.lastStepOf = {};            // it knows nothing of who used the pages that come
  std::vector<PageSource::Piece> pieces;
  for (const PageSharing::Move& move : moves) {
    if (move.page == PageSharing::kNoPage) continue;
    pieces.push_back(
        {slab.base_ + offsets[move.index], wants[move.index].bytes, handles_[move.page]});
  }
  source_->map(pieces);
  for (const PageSharing::Move& move : moves) {
    if (move.page != PageSharing::kNoPage) sharing_.assign(slab.tenant, move.index, move.page);
  }
}

/// Pages for what the slab wants by now. Nobody holds anything in it. Where its old pages cannot be waited
/// for now, they stay.
void ArenaPages::takeNewSizes(PagedSlab& slab) {
  std::vector<PageSharing::Move> moves;
  for (size_t i = 0; i < sharing_.pagesOf(slab.tenant).size(); ++i)
    moves.push_back({i, PageSharing::kNoPage});
  try {
    remap(slab, moves);
  } catch (const c10::Error&) {
    return;
  }
  sharing_.wantAnew(slab.tenant, slab.wants(source_->largePage(), source_->smallPage()));
  slab.ofOldSizes = false;
  slab.unfit = true;
  destroyUnused();
}

void ArenaPages::joinInFlight(PagedSlab& slab, std::shared_ptr<const void> with) {
  const std::lock_guard lock(mutex_);
  if (slab.isInFlightWith(with)) return;
  slab.ofOldSizes = !slab.hasSmallPagesAlone();
  slab.setInFlightWith(std::move(with));
}

void ArenaPages::destroyUnused() {
  for (PageSharing::Page page : sharing_.unused()) {
    const int64_t before = sharing_.bytes();
    sharing_.removePage(page);
    source_->destroy(handles_[page], before - sharing_.bytes());
  }
}

bool ArenaPages::hasAllPages(const PagedSlab& slab) const {
  const auto& pages = sharing_.pagesOf(slab.tenant);
  return std::find(pages.begin(), pages.end(), PageSharing::kNoPage) == pages.end();
}

bool ArenaPages::enter(PagedSlab& slab, size_t entry, std::string& why) {
  std::lock_guard lock(mutex_);
  TORCH_INTERNAL_ASSERT(!slab.running, "an arena is used by two steps at once");
  destroyEnded(/*wait=*/false);
  if (slab.patience > 0) {
    why = "there was no memory for it a few steps ago";
    --slab.patience;
    return false;
  }
  if (slab.ofOldSizes && slab.held() == kNoPart) takeNewSizes(slab);
  const bool met = keepApartFromLiving(slab, entry);
  if (met || slab.unfit) {
    // A broken rule does no harm while nobody else lives on the pages.
    try {
      if (!fit(slab) && keepApartFromLiving(slab, entry))
        why = "held values in it would have to move";
    } catch (const c10::Error& error) {
      if (met || !hasAllPages(slab)) why = error.what_without_backtrace();
    }
    if (!why.empty()) {
      slab.patience = kPatience;
      return false;
    }
    slab.unfit = false;
  }
  if (!orderAfterOthers(slab, entry)) {
    why = kOthersCapture;
    return false;
  }
  slab.running = partOfEntry(entry);
  return true;
}

/// Has the step come after all work on its pages: what the stream of an arena's last step holds now, and
/// streams that read its results. On the same stream that is so by itself. An arena that was not used since
/// this entry's last run was waited for then. False while one of those streams is being captured.
bool ArenaPages::orderAfterOthers(PagedSlab& slab, size_t entry) {
  uint64_t& lastOfPart = slab.lastStepOf[entry == 0 ? 0 : 1];
  const c10::Stream stream = source_->currentStream();
  const auto comesFirst = [&](c10::Stream earlier) {
    return earlier == stream || source_->order(earlier, stream);
  };
  for (const c10::Stream reader : slab.takeOtherReaders()) {
    if (!llvm::is_contained(slab.readers, reader)) slab.readers.push_back(reader);
  }
  const auto comeFirst = [&](const PagedSlab& each) {
    return (!each.lastStream || comesFirst(*each.lastStream)) &&
           llvm::all_of(each.readers, comesFirst);
  };
  if (!comeFirst(slab)) return false;
  for (const PagedSlab* other : slabs_) {
    if (other == &slab || !other->lastStream || other->lastStep < lastOfPart) continue;
    const bool meets = sharing_.meets(slab.tenant, other->tenant, kWholeArena);
    if (meets && !comeFirst(*other)) return false;
  }
  if (slab.held() == kNoPart) slab.readers.clear();
  slab.lastStream = stream;
  slab.lastStep = lastOfPart = ++steps_;
  return true;
}

bool ArenaPages::mayHaveChanged(const PagedSlab& slab) const {
  std::lock_guard lock(mutex_);
  if (slab.held() != kNoPart) return false;
  return slab.moved || std::any_of(slabs_.begin(), slabs_.end(), [&](const PagedSlab* other) {
           return other != &slab && sharing_.meets(slab.tenant, other->tenant, kWholeArena);
         });
}

void ArenaPages::leave(PagedSlab& slab) {
  std::lock_guard lock(mutex_);
  slab.running = kNoPart;
  slab.moved = false;
  slab.mayBeHeld = true;
}

void ArenaPages::follow(PagedSlab& slab) {
  std::lock_guard lock(mutex_);
  if (!slab.lastStream) return;
  const c10::Stream stream = source_->currentStream();
  if (*slab.lastStream == stream) return;
  TORCH_CHECK(source_->order(*slab.lastStream, stream), kCannotFollow);
  slab.lastStream = stream;
}

/// Called by a deleter, on any thread, so it may not wait for work that still uses the pages. Until that is
/// done the arena stays as one in which nobody holds anything: others may have its pages, behind that work.
void ArenaPages::drop(PagedSlab& slab) noexcept {
  // A forked child cannot use its parent's device, and what it has of the host's is its own copy.
  if (slab.process() != getpid()) return;
  const std::lock_guard lock(mutex_);
  try {
    std::vector<c10::Stream> streams = slab.readers;
    for (const c10::Stream reader : slab.takeOtherReaders()) streams.push_back(reader);
    if (slab.lastStream) streams.push_back(*slab.lastStream);
    slab.lastWork = source_->work(streams);
    ended_.emplace_back(&slab);
    destroyEnded(/*wait=*/false);
  } catch (const std::exception&) {  // no memory to note that: its pages stay mapped
  }
}

/// Destroys ended arenas on which no work is left. True if there were any.
bool ArenaPages::destroyEnded(bool wait) {
  if (ended_.empty()) return false;
  const auto isOver = [wait](const auto& slab) {
    return slab->lastWork->isDone() || (wait && slab->lastWork->wait());
  };
  const auto over = std::stable_partition(ended_.begin(), ended_.end(), std::not_fn(isOver));
  if (over == ended_.end()) return false;
  for (auto each = over; each != ended_.end(); ++each) destroy(**each);
  ended_.erase(over, ended_.end());
  destroyUnused();
  return true;
}

void ArenaPages::destroy(PagedSlab& slab) {
  const auto& pages = sharing_.pagesOf(slab.tenant);
  const auto& wants = sharing_.wantsOf(slab.tenant);
  char* at = slab.base_;
  for (size_t i = 0; i < pages.size(); at += wants[i++].bytes) {
    if (pages[i] != PageSharing::kNoPage) source_->unmap(at, wants[i].bytes);
  }
  sharing_.remove(slab.tenant);
  std::erase(slabs_, &slab);
  for (size_t c = 0; c < slab.chunks; ++c) owners_[slab.firstChunk + c].store(nullptr);
  arenas_.fetch_sub(1);
}

int64_t ArenaPages::releaseEnded() {
  const std::lock_guard lock(mutex_);
  const int64_t before = sharing_.bytes();
  destroyEnded(/*wait=*/true);
  return before - sharing_.bytes();
}

int64_t ArenaPages::releaseAtRest() {
  std::lock_guard lock(mutex_);
  const int64_t before = sharing_.bytes();
  destroyEnded(/*wait=*/true);
  for (PagedSlab* slab : slabs_) {
    if (slab->running || slab->lastWork) continue;
    const ArenaParts held = slab->held();
    std::vector<PageSharing::Move> moves;
    const auto& pages = sharing_.pagesOf(slab->tenant);
    const auto& wants = sharing_.wantsOf(slab->tenant);
    for (size_t i = 0; i < pages.size(); ++i) {
      if (pages[i] != PageSharing::kNoPage && !(wants[i].parts & held))
        moves.push_back({i, PageSharing::kNoPage});
    }
    try {
      remap(*slab, moves);
    } catch (const c10::Error&) {
      continue;  // a stream that uses it is being captured: it cannot be waited for
    }
    slab->patience = 0;
  }
  destroyUnused();
  return before - sharing_.bytes();
}

int64_t ArenaPages::bytes() const {
  std::lock_guard lock(mutex_);
  return sharing_.bytes();
}

std::vector<PageSource::Piece> ArenaPages::mapped() const {
  std::vector<PageSource::Piece> found;
  for (const PagedSlab* slab : slabs_) {
    char* at = slab->base_;
    const auto& pages = sharing_.pagesOf(slab->tenant);
    for (size_t i = 0; i < pages.size(); ++i) {
      const int64_t bytes = sharing_.wantsOf(slab->tenant)[i].bytes;
      if (pages[i] != PageSharing::kNoPage) found.push_back({at, bytes, handles_[pages[i]]});
      at += bytes;
    }
  }
  return found;
}

std::vector<Extent> ArenaPages::extents() const {
  std::lock_guard lock(mutex_);
  std::unordered_set<PageHandle> seen;
  std::vector<Extent> found;
  for (const PageSource::Piece& piece : mapped()) {
    if (!seen.insert(piece.handle).second) continue;
    const auto begin = reinterpret_cast<int64_t>(piece.at);
    if (found.empty() || found.back().end != begin) found.push_back({begin, begin});
    found.back().end = begin + piece.bytes;
  }
  return found;
}

}  // namespace gravure
