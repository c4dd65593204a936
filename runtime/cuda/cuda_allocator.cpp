#include "runtime/cuda/cuda_allocator.h"

#include "runtime/arena_session.h"
#include "runtime/cuda/cuda_slab.h"

#include <c10/cuda/CUDAFunctions.h>

namespace gravure {

using namespace c10::cuda::CUDACachingAllocator;

namespace {

/// The one that is in force; set once by install().
std::atomic<CudaAllocator*> installed{nullptr};

thread_local int bypasses = 0;

/// The session that takes this thread's CUDA allocations, nullptr if there is none.
ArenaSession* cudaSession() {
  if (bypasses > 0) return nullptr;
  ArenaSession* session = ArenaSession::current();
  return session != nullptr && session->deviceType() == c10::DeviceType::CUDA ? session : nullptr;
}

/// What PyTorch's allocator knows `address` as: for memory in a slab, the slab.
void* known(void* address) {
  const auto slab = CudaSlab::find(address);
  return slab == nullptr ? address : slab->base();
}

}  // namespace

ArenaBypass::ArenaBypass() { ++bypasses; }
ArenaBypass::~ArenaBypass() { --bypasses; }

CudaAllocator::CudaAllocator(CUDAAllocator* base)
    : base_(base), baseDeleter_(base->raw_deleter()) {}

CudaAllocator& CudaAllocator::install() {
  static CudaAllocator* const ours = [] {
    CUDAAllocator* before = get();
    TORCH_CHECK(before != nullptr, "PyTorch has no CUDA allocator: was libtorch_cuda loaded?");
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

c10::DataPtr CudaAllocator::allocate(size_t bytes) {
  ArenaSession* session = bytes == 0 ? nullptr : cudaSession();
  if (session == nullptr) return base_->allocate(bytes);
  return session->recording() ? record(*session, bytes) : serve(*session, bytes);
}

c10::DataPtr CudaAllocator::record(ArenaSession& session, size_t bytes) {
  c10::DataPtr data = base_->allocate(bytes);
  // Another deleter than PyTorch's usual one: its free would not be seen, so it is not noted.
  if (data.compare_exchange_deleter(baseDeleter_, &deleteOurs)) {
    session.noteAllocation(data.get(), bytes);
  }
  return data;
}

c10::DataPtr CudaAllocator::serve(ArenaSession& session, size_t bytes) {
  void* address = session.serve(bytes);
  if (address == nullptr) return base_->allocate(bytes);
  const bool ours = CudaSlab::retain(address);
  TORCH_INTERNAL_ASSERT(ours, "the plan gave an address outside every slab of CUDA memory");
  return {address, address, &deleteOurs, c10::Device(c10::kCUDA, c10::cuda::current_device())};
}

void CudaAllocator::deleteOurs(void* address) {
  // The free may come on any thread; only its own session may be told.
  if (ArenaSession* session = cudaSession()) session->noteFree(address);
  if (CudaSlab::release(address)) return;
  installed.load()->baseDeleter_(address);
}

// raw_allocate hands out what allocate() gave, and frees it with this.
c10::DeleterFnPtr CudaAllocator::raw_deleter() const { return &deleteOurs; }

void CudaAllocator::recordStream(const c10::DataPtr& ptr, c10::cuda::CUDAStream stream) {
  // What was lent has a deleter that PyTorch does not know.
  if (const auto slab = CudaSlab::find(ptr.get())) {
    slab->readOn(stream);
    return;
  }
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
  return base_->getBaseAllocation(known(address), size);
}

ShareableHandle CudaAllocator::shareIpcHandle(void* address) {
  void* start = known(address);
  ShareableHandle shared = base_->shareIpcHandle(start);
  shared.offset += static_cast<char*>(address) - static_cast<char*>(start);
  return shared;
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
void CudaAllocator::emptyCache(c10::MempoolId_t pool) { base_->emptyCache(pool); }
c10::CachingDeviceAllocator::DeviceStats CudaAllocator::getDeviceStats(c10::DeviceIndex device) {
  return base_->getDeviceStats(device);
}
void CudaAllocator::resetAccumulatedStats(c10::DeviceIndex device) {
  base_->resetAccumulatedStats(device);
}
void CudaAllocator::resetPeakStats(c10::DeviceIndex device) { base_->resetPeakStats(device); }
std::pair<size_t, size_t> CudaAllocator::getMemoryInfo(c10::DeviceIndex device) {
  return base_->getMemoryInfo(device);
}
void* CudaAllocator::raw_alloc(size_t bytes) { return base_->raw_alloc(bytes); }
void* CudaAllocator::raw_alloc_with_stream(size_t bytes, cudaStream_t stream) {
  return base_->raw_alloc_with_stream(bytes, stream);
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
SnapshotInfo CudaAllocator::snapshot(c10::MempoolId_t pool, bool traces) {
  return base_->snapshot(pool, traces);
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
void CudaAllocator::enablePeerAccess(c10::DeviceIndex device, c10::DeviceIndex other) {
  base_->enablePeerAccess(device, other);
}
cudaError_t CudaAllocator::memcpyAsync(void* to, int toDevice, const void* from, int fromDevice,
                                       size_t bytes, cudaStream_t stream, bool peer) {
  return base_->memcpyAsync(to, toDevice, from, fromDevice, bytes, stream, peer);
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
