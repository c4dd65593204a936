#pragma once
// Arenas on a device that cannot map pages: a block of an allocator each, which no other program uses.
// arena_pages.h is what all else has.

#include "runtime/arena/arena_memory.h"

#include <c10/core/Allocator.h>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>

namespace gravure {

/// Blocks of memory of one device.
class BlockSource {
 public:
  virtual ~BlockSource() = default;
  /// c10::Error if there is no memory for it.
  virtual c10::DataPtr allocate(int64_t bytes) = 0;
  virtual c10::Stream currentStream() const = 0;
  /// What `later` gets next comes after what `earlier` holds now. False, and nothing is done, while
  /// `earlier` is being captured: `later` would become part of that capture.
  [[nodiscard]] virtual bool order(c10::Stream earlier, c10::Stream later) = 0;
  /// Before the block is given back: `stream` may still be using it.
  virtual void usedOn(const c10::DataPtr& block, c10::Stream stream) = 0;
};

class BlockSlab;

class ArenaBlocks final : public ArenaMemory {
 public:
  explicit ArenaBlocks(std::unique_ptr<BlockSource> source) : source_(std::move(source)) {}

  /// An arena. `why` the device has no pages, for a remark. c10::Error if there is no memory for it.
  std::shared_ptr<Slab> make(const ArenaShape& shape, std::string why);
  bool contains(const void* address) const;
  int64_t arenas() const { return count_.load(); }

  void retain(const void* address) override;
  void release(const void* address) override;
  Extent arenaAt(const void* address) const override;
  void readOn(const void* address, c10::Stream stream) override;

 private:
  friend class BlockSlab;
  BlockSlab* find(const void* address) const;  // with the lock; nullptr if it lies in none
  BlockSlab& slabAt(const void* address) const;
  bool use(BlockSlab& slab);
  void drop(BlockSlab& slab);

  const std::unique_ptr<BlockSource> source_;
  mutable std::mutex mutex_;
  std::map<const char*, BlockSlab*> slabs_;  // by first address
  std::atomic<int64_t> count_{0};
};

}  // namespace gravure
