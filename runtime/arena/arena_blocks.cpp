#include "runtime/arena/arena_blocks.h"

#include "runtime/results/loan_book.h"

#include <c10/util/Exception.h>
#include <llvm/ADT/STLExtras.h>

#include <unistd.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace gravure {

/// Alive as long as its Slab handle, or a tensor that was retained by its address.
class BlockSlab final : public Slab {
 public:
  BlockSlab(ArenaBlocks& owner, c10::DataPtr block, const ArenaShape& shape, std::string why)
      : owner_(owner), block_(std::move(block)), bytes_(shape.bytes), savedBook_(shape.savedBook),
        why_(std::move(why)) {}

  char* base() const override { return static_cast<char*>(block_.get()); }
  int64_t bytes() const override { return bytes_; }
  bool enter(size_t /*entry*/, std::string& why) override {
    if (owner_.use(*this)) return true;
    why = kOthersCapture;
    return false;
  }
  void leave() override {}
  void follow() override { TORCH_CHECK(owner_.use(*this), kCannotFollow); }
  bool mayHaveChanged() const override { return false; }
  std::string whyUnshared() const override { return why_; }

  void retain() { references_.fetch_add(1, std::memory_order_relaxed); }
  void release() {
    if (references_.fetch_sub(1, std::memory_order_acq_rel) == 1) owner_.drop(*this);
  }

 private:
  friend class ArenaBlocks;
  ArenaBlocks& owner_;
  c10::DataPtr block_;
  const int64_t bytes_;
  const std::shared_ptr<LoanBook> savedBook_;
  const std::string why_;
  const pid_t process_ = getpid();
  std::atomic<int64_t> references_{1};
  std::vector<c10::Stream> streams_;  // that used it, the last one at the end; the owner's mutex
  std::vector<c10::Stream> readers_;
};

namespace {

void note(std::vector<c10::Stream>& streams, c10::Stream stream) {
  const auto known = std::find(streams.begin(), streams.end(), stream);
  if (known != streams.end()) streams.erase(known);
  streams.push_back(stream);
}

}  // namespace

std::shared_ptr<Slab> ArenaBlocks::make(const ArenaShape& shape, std::string why) {
  auto made =
      std::make_unique<BlockSlab>(*this, source_->allocate(shape.bytes), shape, std::move(why));
  const std::lock_guard lock(mutex_);
  made->streams_.push_back(source_->currentStream());
  slabs_.emplace(made->base(), made.get());
  count_.fetch_add(1);
  return {made.release(), [](Slab* each) { static_cast<BlockSlab*>(each)->release(); }};
}

BlockSlab* ArenaBlocks::find(const void* address) const {
  auto behind = slabs_.upper_bound(static_cast<const char*>(address));
  if (behind == slabs_.begin()) return nullptr;
  BlockSlab* slab = std::prev(behind)->second;
  return address < slab->base() + slab->bytes() ? slab : nullptr;
}

BlockSlab& ArenaBlocks::slabAt(const void* address) const {
  BlockSlab* slab = find(address);
  TORCH_INTERNAL_ASSERT(slab != nullptr, "an address of no arena");
  return *slab;
}

bool ArenaBlocks::contains(const void* address) const {
  if (count_.load(std::memory_order_acquire) == 0) return false;
  const std::lock_guard lock(mutex_);
  return find(address) != nullptr;
}

void ArenaBlocks::retain(const void* address) {
  const std::lock_guard lock(mutex_);
  slabAt(address).retain();
}

void ArenaBlocks::release(const void* address) {
  BlockSlab* slab = nullptr;
  {
    const std::lock_guard lock(mutex_);
    slab = &slabAt(address);
  }
  slab->release();  // the caller's own reference kept it until here
}

Extent ArenaBlocks::arenaAt(const void* address) const {
  const std::lock_guard lock(mutex_);
  const BlockSlab& slab = slabAt(address);
  const auto begin = reinterpret_cast<int64_t>(slab.base());
  return {begin, begin + slab.bytes()};
}

void ArenaBlocks::readOn(const void* address, c10::Stream stream) {
  const std::lock_guard lock(mutex_);
  note(slabAt(address).readers_, stream);
}

/// What the current stream gets next comes after the last use, and after what reads results. False while
/// one of those streams is being captured.
bool ArenaBlocks::use(BlockSlab& slab) {
  const std::lock_guard lock(mutex_);
  const c10::Stream stream = source_->currentStream();
  const auto comesFirst = [&](c10::Stream earlier) {
    return earlier == stream || source_->order(earlier, stream);
  };
  if (slab.savedBook_) {
    for (const c10::Stream reader : slab.savedBook_->takeReaders()) note(slab.readers_, reader);
  }
  if (!comesFirst(slab.streams_.back()) || !llvm::all_of(slab.readers_, comesFirst)) return false;
  note(slab.streams_, stream);
  return true;
}

void ArenaBlocks::drop(BlockSlab& slab) {
  // A forked child cannot use its parent's device.
  if (slab.process_ != getpid()) return;
  const std::unique_ptr<BlockSlab> last(&slab);
  {
    const std::lock_guard lock(mutex_);
    slabs_.erase(slab.base());
    count_.fetch_sub(1);
  }
  for (const auto& streams : {slab.streams_, slab.readers_}) {
    for (const c10::Stream stream : streams) source_->usedOn(slab.block_, stream);
  }
}

}  // namespace gravure
