#pragma once
// The allocator that stands before PyTorch's own and gives a running program its planned memory.

#include "ir/torch_private/cuda_newer_allocator.h"

#include <c10/cuda/CUDACachingAllocator.h>

#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <utility>

namespace gravure {

class ArenaSession;
class CudaArenaStats;

/// Forwards everything to the allocator that was in force before it. Only allocate() on a thread
/// with an open ArenaSession for CUDA differs:
///   record   PyTorch's memory, with a deleter of ours that tells the session of the free
///   serve    the planned address in the session's arena, or PyTorch's memory where the plan has none
/// When PyTorch is out of memory, its cache is emptied if a warm-up kept it from doing so, then idle
/// arenas give their pages back, and it is asked once more after each.
/// Every DataPtr made here has its own address as context, as raw_allocate and copy-on-write need it.
class CudaAllocator final : public torch_private::NewerAllocator {
  using Base = c10::cuda::CUDACachingAllocator::CUDAAllocator;

 public:
  /// Puts it in force, once, for the life of the process: every storage remembers its allocator.
  static CudaAllocator& install();

  /// PyTorch's own.
  Base& base() const { return *base_; }
  /// What is said of a device's memory; CUDA's arenas are told of here.
  CudaArenaStats& stats(c10::DeviceIndex device);
  /// Whether allocations are being routed to this pool: begun here and not ended.
  bool isRouted(c10::DeviceIndex device, c10::MempoolId_t pool);
  /// emptyCache(), or false, and nothing is done: PyTorch refuses while somebody captures, or routes
  /// allocations to a pool (torch.cuda.use_mem_pool).
  bool tryEmptyCache(c10::MempoolId_t pool);
  /// Of memory in an arena, or noted by a session; for other memory it does what PyTorch's does.
  static c10::DeleterFnPtr deleter() { return &deleteOurs; }

  c10::DataPtr allocate(size_t bytes) override;
  /// PyTorch's own: its CUDA graph trees ask whether a storage has this one, and change it. Inside a
  /// session it is deleter(), for what an operator gets with raw_allocate and gives back.
  c10::DeleterFnPtr raw_deleter() const override;
  void copy_data(void* to, const void* from, std::size_t bytes) const override;

  bool initialized() override;
  /// PyTorch's cache, also while programs warm up, and what programs that are gone have left. Waits for
  /// the work on that, as PyTorch does for what other streams use.
  void emptyCache(c10::MempoolId_t pool) override;
  using Base::recordStream;
  void recordStream(const c10::DataPtr& ptr, c10::cuda::CUDAStream stream) override;
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override;
  c10::CachingDeviceAllocator::DeviceStats statsWithoutArenas(c10::DeviceIndex device) {
    return base_->getDeviceStats(device);
  }
  void resetAccumulatedStats(c10::DeviceIndex device) override;
  void resetPeakStats(c10::DeviceIndex device) override;
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override;

  void* raw_alloc(size_t bytes) override;
  void* raw_alloc_with_stream(size_t bytes, cudaStream_t stream) override;
  void raw_delete(void* address) override;
  void init(int devices) override;
  double getMemoryFraction(c10::DeviceIndex device) override;
  void setMemoryFraction(double fraction, c10::DeviceIndex device) override;
  std::vector<c10::cuda::CUDACachingAllocator::StreamSegmentSize>
  getExpandableSegmentSizes(c10::DeviceIndex device) override;
  void enable(bool value) override;
  bool isEnabled() const override;
  void cacheInfo(c10::DeviceIndex device, size_t* largest) override;
  /// For an address in an arena: that of the arena.
  void* getBaseAllocation(void* address, size_t* size) override;
  /// With the arenas, as segments and by name. Since torch 2.15 as segments only while the history of
  /// allocations is recorded: NCCL would register what it sees, and an arena's pages change.
  c10::cuda::CUDACachingAllocator::SnapshotInfo snapshot(c10::MempoolId_t pool,
                                                         bool traces) override;

  void beginAllocateToPool(c10::DeviceIndex device, c10::MempoolId_t pool,
                           std::function<bool(cudaStream_t)> filter) override;
  void endAllocateToPool(c10::DeviceIndex device, c10::MempoolId_t pool) override;
  void releasePool(c10::DeviceIndex device, c10::MempoolId_t pool) override;
  int getPoolUseCount(c10::DeviceIndex device, c10::MempoolId_t pool) override;
  void createOrIncrefPool(c10::DeviceIndex device, c10::MempoolId_t pool,
                          std::shared_ptr<Base> allocator) override;
  void setUseOnOOM(c10::DeviceIndex device, c10::MempoolId_t pool, bool use) override;
  void setNoSplit(c10::DeviceIndex device, c10::MempoolId_t pool) override;
  bool checkPoolLiveAllocations(c10::DeviceIndex device, c10::MempoolId_t pool,
                                const std::unordered_set<void*>& expected) override;

  c10::cuda::CUDACachingAllocator::ShareableHandle shareIpcHandle(void* address) override;
  std::shared_ptr<void> getIpcDevPtr(std::string handle) override;

  bool isHistoryEnabled() override;
  void recordHistory(bool enabled, c10::cuda::CUDACachingAllocator::CreateContextFn context,
                     size_t entries, c10::cuda::CUDACachingAllocator::RecordContext when,
                     bool clear, const std::vector<std::string>& skip) override;
  void recordAnnotation(const std::vector<std::pair<std::string, std::string>>& pairs) override;
  void pushCompileContext(std::string& context) override;
  void popCompileContext() override;
  void setUserMetadata(const std::string& metadata) override;
  std::string getUserMetadata() override;
  void
  attachOutOfMemoryObserver(c10::cuda::CUDACachingAllocator::OutOfMemoryObserver observer) override;
  void attachAllocatorTraceTracker(
      c10::cuda::CUDACachingAllocator::AllocatorTraceTracker tracker) override;

  void enablePeerAccess(c10::DeviceIndex device, c10::DeviceIndex other) override;
  cudaError_t memcpyAsync(void* to, int toDevice, const void* from, int fromDevice, size_t bytes,
                          cudaStream_t stream, bool peer) override;
  std::shared_ptr<c10::cuda::CUDACachingAllocator::AllocatorState>
  getCheckpointState(c10::DeviceIndex device, c10::MempoolId_t pool) override;
  c10::cuda::CUDACachingAllocator::CheckpointDelta setCheckpointPoolState(
      c10::DeviceIndex device,
      std::shared_ptr<c10::cuda::CUDACachingAllocator::AllocatorState> state) override;
  std::string name() override;

 private:
  explicit CudaAllocator(Base* base);
  c10::DataPtr record(ArenaSession& session, size_t bytes);
  c10::DataPtr serve(ArenaSession& session, size_t bytes);
  c10::DataPtr forProgram(size_t bytes);
  c10::DataPtr forOthers(size_t bytes);
  static void deleteOurs(void* address) noexcept;

  const c10::DeleterFnPtr baseDeleter_;
  std::mutex mutex_;
  std::set<std::pair<c10::DeviceIndex, c10::MempoolId_t>> routed_;
  std::map<c10::DeviceIndex, std::unique_ptr<CudaArenaStats>> stats_;
};

/// While one lives, the thread's allocations are PyTorch's own, whatever session is open: for what
/// outlives the step, such as library workspaces.
class ArenaBypass {
 public:
  ArenaBypass();
  ~ArenaBypass();
  ArenaBypass(const ArenaBypass&) = delete;
  ArenaBypass& operator=(const ArenaBypass&) = delete;
};

}  // namespace gravure
