#include "runtime/cuda/cuda_slab.h"

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAGuard.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

namespace gravure {

namespace {

struct Listed {
  CudaSlab* slab = nullptr;
  int64_t tensors = 0;
  std::shared_ptr<CudaSlab> kept;  // while tensors > 0
};

/// All slabs by their first address. Never destroyed: tensors may be freed while the process ends.
struct Table {
  std::mutex mutex;
  std::map<const char*, Listed> slabs;

  static Table& get() {
    static Table* table = new Table;
    return *table;
  }

  /// The entry whose slab holds `address`, or nullptr. The mutex is held.
  Listed* at(const void* address) {
    const char* p = static_cast<const char*>(address);
    auto it = slabs.upper_bound(p);
    if (it == slabs.begin()) return nullptr;
    --it;
    return p < it->first + it->second.slab->bytes() ? &it->second : nullptr;
  }
};

}  // namespace

CudaSlab::CudaSlab(c10::cuda::CUDACachingAllocator::CUDAAllocator& allocator, c10::DataPtr memory,
                   int64_t bytes)
    : allocator_(allocator), memory_(std::move(memory)), bytes_(bytes) {}

std::shared_ptr<CudaSlab> CudaSlab::make(c10::cuda::CUDACachingAllocator::CUDAAllocator& allocator,
                                         c10::cuda::CUDAStream stream, int64_t bytes) {
  TORCH_INTERNAL_ASSERT(bytes >= 0, "an arena of ", bytes, " bytes");
  c10::cuda::CUDAStreamGuard guard(stream);
  c10::DataPtr memory = allocator.allocate(bytes);
  std::shared_ptr<CudaSlab> slab(new CudaSlab(allocator, std::move(memory), bytes));
  if (bytes > 0) {
    Table& table = Table::get();
    std::lock_guard lock(table.mutex);
    table.slabs[slab->base()].slab = slab.get();
  }
  return slab;
}

CudaSlab::~CudaSlab() {
  Table& table = Table::get();
  std::lock_guard lock(table.mutex);
  if (bytes_ > 0) table.slabs.erase(base());
}

void CudaSlab::usedOn(c10::cuda::CUDAStream stream) {
  if (bytes_ > 0) allocator_.recordStream(memory_, stream);
}

void CudaSlab::readOn(c10::cuda::CUDAStream stream) {
  usedOn(stream);
  std::lock_guard lock(readersMutex_);
  if (std::find(readers_.begin(), readers_.end(), stream) == readers_.end())
    readers_.push_back(stream);
}

void CudaSlab::waitForReaders(c10::cuda::CUDAStream stream) {
  std::lock_guard lock(readersMutex_);
  for (const c10::cuda::CUDAStream reader : readers_) {
    if (reader == stream) continue;
    c10::cuda::CUDAEvent event;
    event.record(reader);
    event.block(stream);
  }
}

bool CudaSlab::retain(void* address) {
  Table& table = Table::get();
  std::lock_guard lock(table.mutex);
  Listed* listed = table.at(address);
  if (listed == nullptr) return false;
  if (listed->tensors++ == 0) listed->kept = listed->slab->shared_from_this();
  return true;
}

bool CudaSlab::release(void* address) {
  std::shared_ptr<CudaSlab> last;  // destroyed after the lock is: its destructor takes it again
  Table& table = Table::get();
  std::lock_guard lock(table.mutex);
  Listed* listed = table.at(address);
  if (listed == nullptr) return false;
  if (--listed->tensors == 0) last = std::move(listed->kept);
  return true;
}

std::shared_ptr<CudaSlab> CudaSlab::find(const void* address) {
  Table& table = Table::get();
  std::lock_guard lock(table.mutex);
  Listed* listed = table.at(address);
  return listed == nullptr ? nullptr : listed->slab->weak_from_this().lock();
}

}  // namespace gravure
