#include "runtime/cuda/cuda_allocator.h"

#include "runtime/cuda/cuda_arena_stats.h"
#include "runtime/cuda/cuda_blocks.h"
#include "runtime/cuda/cuda_end_of_life.h"
#include "runtime/cuda/cuda_pages.h"
#include "runtime/cuda/cuda_partition_graph.h"
#include "runtime/cuda/cuda_spare_pools.h"
#include "runtime/cuda/cuda_warm_up_memory.h"
#include "runtime/cuda/cuda_warm_up_pool.h"
#include "runtime/device/arena_session.h"
#include "runtime/device/call_faults.h"
#include "runtime/results/results.h"

#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>

namespace gravure {

using namespace c10::cuda::CUDACachingAllocator;

namespace {

/// The one that is in force; set once by install().
std::atomic<CudaAllocator*> installed{nullptr};

thread_local int bypasses = 0;

/// Whether PyTorch's cache had no block for what this thread has just allocated, so that it asked the driver.
thread_local bool askedDriver = false;

/// PyTorch calls it then, with its lock held: so it is noted here, and looked at behind the allocation.
class NoteOfDriver final : public c10::FreeMemoryCallback {
 public:
  bool Execute() override {
    askedDriver = true;
    return false;  // nothing was given back
  }
};
using c10::FreeCudaMemoryCallbacksRegistry;
using c10::RegistererFreeCudaMemoryCallbacksRegistry;
REGISTER_FREE_MEMORY_CALLBACK("gravure", NoteOfDriver)

constexpr int64_t kMiB = int64_t{1} << 20;

/// What PyTorch's cache takes from the driver for `bytes`, more than 1 MiB: the sizes of its segments.
int64_t segmentBytes(int64_t bytes) {
  return std::max(20 * kMiB, (bytes + 2 * kMiB - 1) / (2 * kMiB) * (2 * kMiB));
}

/// The session that takes this thread's CUDA allocations, nullptr if there is none.
ArenaSession* cudaSession() {
  if (bypasses > 0 || ArenaSession::current() == nullptr) return nullptr;
  return ArenaSession::of({c10::kCUDA, c10::cuda::current_device()});
}

/// Empties PyTorch's cache, which it does not do itself while allocations are routed to a pool, if they
/// were. False if there is nothing to gain.
bool emptyRoutedCache(CUDAAllocator& base) {
  const UnseenByCaptures unseen;
  const RoutingsPaused paused;
  if (!paused.any()) return false;
  try {
    base.emptyCache({0, 0});
    return true;
  } catch (const std::exception&) {
    return false;  // somebody captures
  }
}

/// Gives back what ended warm-ups and idle arenas of the current device take. False if that is nothing.
bool giveBackIdle() {
  const UnseenByCaptures unseen;
  try {
    return releaseAtRest(c10::cuda::current_device()) > 0;
  } catch (const std::exception&) {
    return false;  // a stream that is being captured cannot be waited for
  }
}

/// What `allocate` returns. If PyTorch is out of memory, it empties its cache; idle arenas give theirs.
/// PyTorch's own FreeMemoryCallback is no way to that: it is called whenever the cache has no block of
/// the size, and with PyTorch's lock held, which a thread that makes an arena takes with ours held.
template <typename Allocate>
auto orFromIdle(CUDAAllocator& base, Allocate&& allocate) {
  const auto orEmptied = [&] {
    try {
      return allocate();
    } catch (const c10::OutOfMemoryError&) {
      if (!emptyRoutedCache(base)) throw;
    }
    return allocate();
  };
  try {
    return orEmptied();
  } catch (const c10::OutOfMemoryError&) {
    if (!giveBackIdle() && !isWarmingUp()) throw;
  }
  if (!isWarmingUp()) return orEmptied();
  try {
    return orEmptied();
  } catch (const c10::OutOfMemoryError&) {
    // What is free in the blocks of PyTorch's cache, which cannot be given back, does for eager.
    const RoutingsPaused paused;
    return allocate();
  }
}

/// Pages of the arenas as PyTorch's snapshots have memory: one block in use.
SegmentInfo segmentOf(c10::DeviceIndex device, const Extent& extent) {
  const auto bytes = static_cast<size_t>(extent.end - extent.begin);
  BlockInfo block;
  block.size = block.requested_size = bytes;
  block.allocated = block.active = true;
  SegmentInfo segment;
  segment.device = device;
  segment.address = static_cast<size_t>(extent.begin);
  segment.total_size = segment.requested_size = bytes;
  segment.allocated_size = segment.active_size = bytes;
  segment.is_large = segment.is_expandable = true;
  segment.blocks.push_back(std::move(block));
  return segment;
}

}  // namespace

ArenaBypass::ArenaBypass() { ++bypasses; }
ArenaBypass::~ArenaBypass() { --bypasses; }

CudaAllocator::CudaAllocator(CUDAAllocator* base)
    : NewerAllocator(base), baseDeleter_(base->raw_deleter()) {}

CudaAllocator& CudaAllocator::install() {
  static CudaAllocator* const ours = [] {
    CUDAAllocator* before = get();
    TORCH_CHECK(before != nullptr, "PyTorch has no CUDA allocator: was libtorch_cuda loaded?");
    TORCH_CHECK(before->name() != "cudaMallocAsync",
                "PyTorch's CUDA allocator is cudaMallocAsync, which has no memory pools for "
                "programs to warm up in: leave backend:cudaMallocAsync out of PYTORCH_ALLOC_CONF "
                "(or PYTORCH_CUDA_ALLOC_CONF)");
    TORCH_CHECK(before->name() != "pluggable",
                "PyTorch's CUDA allocator was changed for a CUDAPluggableAllocator (RMM's, say), "
                "which has no memory pools for programs to warm up in and to be captured with: "
                "leave out torch.cuda.memory.change_current_allocator, and give that allocator "
                "the parts of the program that need it with torch.cuda.use_mem_pool("
                "torch.cuda.MemPool(allocator))");
    auto* made = new CudaAllocator(before);
    installed.store(made);
    allocator.store(made);
    return made;
  }();
  return *ours;
}

bool CudaAllocator::isRouted(c10::DeviceIndex device, c10::MempoolId_t pool) {
  std::lock_guard lock(mutex_);
  return routed_.count({device, pool}) > 0;
}

bool CudaAllocator::tryEmptyCache(c10::MempoolId_t pool) {
  const UnseenByCaptures unseen;
  const RoutingsPaused paused;
  try {
    base_->emptyCache(pool);
    return true;
  } catch (const c10::Error&) {
    return false;
  }
}

void CudaAllocator::emptyCache(c10::MempoolId_t pool) {
  const bool all = pool == c10::MempoolId_t{0, 0};
  const c10::DeviceIndex devices = all ? c10::cuda::device_count() : c10::DeviceIndex{0};
  for (c10::DeviceIndex device = 0; device < devices; ++device) SparePools::of(device).letGo(*this);
  const RoutingsPaused paused;
  try {
    base_->emptyCache(pool);
  } catch (const c10::Error&) {
    // The cache stays as it is, as it does where PyTorch runs out of memory during a capture: whoever
    // asked knows of no capture.
    if (!PartitionGraph::oneIsCaptured()) throw;
  }
  if (!all) return;
  const UnseenByCaptures unseen;
  for (c10::DeviceIndex device = 0; device < devices; ++device) releaseEnded(device);
}

c10::DataPtr CudaAllocator::allocate(size_t bytes) {
  ArenaSession* session = bytes == 0 ? nullptr : cudaSession();
  if (session == nullptr) return forOthers(bytes);
  return session->recording() ? record(*session, bytes) : serve(*session, bytes);
}

/// PyTorch's memory for eager code.
c10::DataPtr CudaAllocator::forOthers(size_t bytes) {
  askedDriver = false;
  c10::DataPtr data = orFromIdle(*base_, [&] { return base_->allocate(bytes); });
  const auto wanted = static_cast<int64_t>(bytes);
  if (!askedDriver || isWarmingUp() || wanted <= kMiB) return data;  // 2 MiB are not worth a wait
  const UnseenByCaptures unseen;
  const auto device = c10::cuda::current_device();
  if (!isCapturing(c10::cuda::getCurrentCUDAStream(device)))
    SparePools::of(device).makeRoom(*this, segmentBytes(wanted));
  return data;
}

/// PyTorch's memory for a program: the error becomes a remark, which says how much is missing.
c10::DataPtr CudaAllocator::forProgram(size_t bytes) {
  passCall("an allocation of PyTorch's");
  try {
    return orFromIdle(*base_, [&] { return base_->allocate(bytes); });
  } catch (c10::OutOfMemoryError& error) {
    const int64_t rest = availableMemory(c10::cuda::current_device());
    const int64_t missing = std::max<int64_t>(static_cast<int64_t>(bytes) - rest, 1 << 20);
    error.add_context("at least " + std::to_string((missing + (1 << 20) - 1) >> 20) +
                      " MiB are missing");
    throw;
  }
}

c10::DataPtr CudaAllocator::record(ArenaSession& session, size_t bytes) {
  c10::DataPtr data = forProgram(bytes);
  // Another deleter than PyTorch's usual one: its free would not be seen, so it is not noted.
  if (data.compare_exchange_deleter(baseDeleter_, &deleteOurs)) {
    session.noteAllocation(data.get(), bytes);
  }
  return data;
}

c10::DataPtr CudaAllocator::serve(ArenaSession& session, size_t bytes) {
  void* address = session.serve(bytes);
  if (address == nullptr) return forProgram(bytes);
  ArenaMemory* arenas = cudaArenasAt(address);
  TORCH_INTERNAL_ASSERT(arenas != nullptr, "the plan gave an address outside every arena");
  arenas->retain(address);
  return {address, address, &deleteOurs, c10::Device(c10::kCUDA, c10::cuda::current_device())};
}

void CudaAllocator::deleteOurs(void* address) noexcept {
  // The free may come on any thread; only its own session may be told.
  ArenaSession::freed(address);
  if (ArenaMemory* arenas = cudaArenasAt(address)) {
    arenas->release(address);
    return;
  }
  atEnd("giving memory back", [&] { installed.load()->baseDeleter_(address); });
}

c10::DeleterFnPtr CudaAllocator::raw_deleter() const {
  return cudaSession() == nullptr ? baseDeleter_ : &deleteOurs;
}

void CudaAllocator::recordStream(const c10::DataPtr& ptr, c10::cuda::CUDAStream stream) {
  // What was lent has a deleter that PyTorch does not know.
  if (ArenaMemory* arenas = cudaArenasAt(ptr.get())) {
    arenas->readOn(ptr.get(), stream.unwrap());
    return;
  }
  if (noteReader(ptr, stream.unwrap())) return;
  if (ptr.get_deleter() != &deleteOurs) {
    base_->recordStream(ptr, stream);
    return;
  }
  // PyTorch's allocator looks only at pointers with its own deleter.
  c10::DataPtr lent(ptr.get(), ptr.get(), baseDeleter_, ptr.device());
  try {
    base_->recordStream(lent, stream);
  } catch (...) {
    lent.release_context();
    throw;
  }
  lent.release_context();
}

void* CudaAllocator::getBaseAllocation(void* address, size_t* size) {
  const ArenaMemory* arenas = cudaArenasAt(address);
  if (arenas == nullptr) return base_->getBaseAllocation(address, size);
  const Extent arena = arenas->arenaAt(address);
  if (size != nullptr) *size = static_cast<size_t>(arena.end - arena.begin);
  return reinterpret_cast<void*>(arena.begin);
}

ShareableHandle CudaAllocator::shareIpcHandle(void* address) {
  TORCH_CHECK(cudaArenasAt(address) == nullptr && !WarmUpMemory::anyContains(address),
              "a tensor that lies in a program's memory cannot be shared with another process, "
              "since the program writes there again: share a clone() of it, or load the program "
              "with results=\"copied\"");
  return base_->shareIpcHandle(address);
}

CudaArenaStats& CudaAllocator::stats(c10::DeviceIndex device) {
  std::lock_guard lock(mutex_);
  auto& stats = stats_[device];
  if (!stats) stats = std::make_unique<CudaArenaStats>(*base_, device);
  return *stats;
}

c10::CachingDeviceAllocator::DeviceStats CudaAllocator::getDeviceStats(c10::DeviceIndex device) {
  return stats(device).withArenas();
}
void CudaAllocator::resetAccumulatedStats(c10::DeviceIndex device) {
  stats(device).resetAccumulated();
}
void CudaAllocator::resetPeakStats(c10::DeviceIndex device) { stats(device).resetPeaks(); }

SnapshotInfo CudaAllocator::snapshot(c10::MempoolId_t pool, bool traces) {
  SnapshotInfo info = base_->snapshot(pool, traces);
  if (pool != c10::MempoolId_t{0, 0}) return info;
  // Annotations name the arenas all the same.
  const bool asSegments = !torch_private::kNcclRegistersSnapshots || base_->isHistoryEnabled();
  for (c10::DeviceIndex device = 0; device < c10::cuda::device_count(); ++device) {
    const ArenaPages* arenas = knownCudaPages(device);
    if (arenas == nullptr) continue;
    for (const Extent& extent : arenas->extents()) {
      if (asSegments) info.segments.push_back(segmentOf(device, extent));
      c10::CachingDeviceAllocator::AnnotationEntry name(device, c10::getApproximateTime());
      name.recordUserMetadata("name", "gravure arena");
      name.recordUserMetadata("address", std::to_string(extent.begin));
      name.recordUserMetadata("size", std::to_string(extent.end - extent.begin));
      info.external_annotations.push_back(std::move(name));
    }
  }
  return info;
}

void CudaAllocator::enablePeerAccess(c10::DeviceIndex device, c10::DeviceIndex other) {
  base_->enablePeerAccess(device, other);
  openArenasTo(other, device);
}

cudaError_t CudaAllocator::memcpyAsync(void* to, int toDevice, const void* from, int fromDevice,
                                       size_t bytes, cudaStream_t stream, bool peer) {
  // As for PyTorch's own expandable segments: only cudaMalloc's memory is copied without a peer.
  const auto isPaged = [](const void* address) {
    return cudaPagesAt(address) != nullptr || WarmUpMemory::anyContains(address);
  };
  const bool ours = isPaged(to) || isPaged(from);
  if (toDevice != fromDevice && !peer && ours) {
    return cudaMemcpyPeerAsync(to, toDevice, from, fromDevice, bytes, stream);
  }
  return base_->memcpyAsync(to, toDevice, from, fromDevice, bytes, stream, peer);
}

void CudaAllocator::beginAllocateToPool(c10::DeviceIndex device, c10::MempoolId_t pool,
                                        std::function<bool(cudaStream_t)> filter) {
  base_->beginAllocateToPool(device, pool, std::move(filter));
  std::lock_guard lock(mutex_);
  routed_.insert({device, pool});
}

void CudaAllocator::endAllocateToPool(c10::DeviceIndex device, c10::MempoolId_t pool) {
  base_->endAllocateToPool(device, pool);
  std::lock_guard lock(mutex_);
  routed_.erase({device, pool});
}

// The rest is PyTorch's own.

void CudaAllocator::copy_data(void* to, const void* from, std::size_t bytes) const {
  base_->copy_data(to, from, bytes);
}
bool CudaAllocator::initialized() { return base_->initialized(); }
std::pair<size_t, size_t> CudaAllocator::getMemoryInfo(c10::DeviceIndex device) {
  return base_->getMemoryInfo(device);
}
void* CudaAllocator::raw_alloc(size_t bytes) {
  return orFromIdle(*base_, [&] { return base_->raw_alloc(bytes); });
}
void* CudaAllocator::raw_alloc_with_stream(size_t bytes, cudaStream_t stream) {
  // Where it lies is known to be that stream's work's (WarmUpMemory).
  const c10::cuda::CUDAStreamGuard on(
      c10::cuda::getStreamFromExternal(stream, c10::cuda::current_device()));
  return orFromIdle(*base_, [&] { return base_->raw_alloc_with_stream(bytes, stream); });
}
void CudaAllocator::raw_delete(void* address) { base_->raw_delete(address); }
void CudaAllocator::init(int devices) { base_->init(devices); }
double CudaAllocator::getMemoryFraction(c10::DeviceIndex device) {
  return base_->getMemoryFraction(device);
}
void CudaAllocator::setMemoryFraction(double fraction, c10::DeviceIndex device) {
  base_->setMemoryFraction(fraction, device);
}
std::vector<StreamSegmentSize> CudaAllocator::getExpandableSegmentSizes(c10::DeviceIndex device) {
  return base_->getExpandableSegmentSizes(device);
}
void CudaAllocator::enable(bool value) { base_->enable(value); }
bool CudaAllocator::isEnabled() const { return base_->isEnabled(); }
void CudaAllocator::cacheInfo(c10::DeviceIndex device, size_t* largest) {
  base_->cacheInfo(device, largest);
}
void CudaAllocator::releasePool(c10::DeviceIndex device, c10::MempoolId_t pool) {
  base_->releasePool(device, pool);
}
int CudaAllocator::getPoolUseCount(c10::DeviceIndex device, c10::MempoolId_t pool) {
  return base_->getPoolUseCount(device, pool);
}
void CudaAllocator::createOrIncrefPool(c10::DeviceIndex device, c10::MempoolId_t pool,
                                       std::shared_ptr<CUDAAllocator> allocator) {
  base_->createOrIncrefPool(device, pool, std::move(allocator));
}
void CudaAllocator::setUseOnOOM(c10::DeviceIndex device, c10::MempoolId_t pool, bool use) {
  base_->setUseOnOOM(device, pool, use);
}
void CudaAllocator::setNoSplit(c10::DeviceIndex device, c10::MempoolId_t pool) {
  base_->setNoSplit(device, pool);
}
bool CudaAllocator::checkPoolLiveAllocations(c10::DeviceIndex device, c10::MempoolId_t pool,
                                             const std::unordered_set<void*>& expected) {
  return base_->checkPoolLiveAllocations(device, pool, expected);
}
std::shared_ptr<void> CudaAllocator::getIpcDevPtr(std::string handle) {
  return base_->getIpcDevPtr(std::move(handle));
}
bool CudaAllocator::isHistoryEnabled() { return base_->isHistoryEnabled(); }
void CudaAllocator::recordHistory(bool enabled, CreateContextFn context, size_t entries,
                                  RecordContext when, bool clear,
                                  const std::vector<std::string>& skip) {
  base_->recordHistory(enabled, context, entries, when, clear, skip);
}
void CudaAllocator::recordAnnotation(
    const std::vector<std::pair<std::string, std::string>>& pairs) {
  base_->recordAnnotation(pairs);
}
void CudaAllocator::pushCompileContext(std::string& context) { base_->pushCompileContext(context); }
void CudaAllocator::popCompileContext() { base_->popCompileContext(); }
void CudaAllocator::setUserMetadata(const std::string& metadata) {
  base_->setUserMetadata(metadata);
}
std::string CudaAllocator::getUserMetadata() { return base_->getUserMetadata(); }
void CudaAllocator::attachOutOfMemoryObserver(OutOfMemoryObserver observer) {
  base_->attachOutOfMemoryObserver(std::move(observer));
}
void CudaAllocator::attachAllocatorTraceTracker(AllocatorTraceTracker tracker) {
  base_->attachAllocatorTraceTracker(std::move(tracker));
}
std::shared_ptr<AllocatorState> CudaAllocator::getCheckpointState(c10::DeviceIndex device,
                                                                  c10::MempoolId_t pool) {
  return base_->getCheckpointState(device, pool);
}
CheckpointDelta CudaAllocator::setCheckpointPoolState(c10::DeviceIndex device,
                                                      std::shared_ptr<AllocatorState> state) {
  return base_->setCheckpointPoolState(device, std::move(state));
}
std::string CudaAllocator::name() { return base_->name(); }

}  // namespace gravure
