// What torch asks of an allocator since 2.12 reaches PyTorch's own.

#include "ir/torch_private/cuda_newer_allocator.h"

#include <string>
#include <vector>

using namespace c10::cuda::CUDACachingAllocator;
using gravure::torch_private::NewerAllocator;

namespace {

/// Nothing but a name: what torch 2.11 asks is not asked here.
template <typename Base>
class Bare : public Base {
 public:
  using Base::Base;
  using Base::recordStream;
  c10::DataPtr allocate(size_t) override { return {}; }
  void copy_data(void*, const void*, size_t) const override {}
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex) override { return {}; }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex) override {}
  void* raw_alloc(size_t) override { return nullptr; }
  void* raw_alloc_with_stream(size_t, cudaStream_t) override { return nullptr; }
  void raw_delete(void*) override {}
  void init(int) override {}
  double getMemoryFraction(c10::DeviceIndex) override { return 1; }
  void setMemoryFraction(double, c10::DeviceIndex) override {}
  std::vector<StreamSegmentSize> getExpandableSegmentSizes(c10::DeviceIndex) override { return {}; }
  void enable(bool) override {}
  bool isEnabled() const override { return true; }
  void cacheInfo(c10::DeviceIndex, size_t*) override {}
  void* getBaseAllocation(void*, size_t*) override { return nullptr; }
  void recordStream(const c10::DataPtr&, c10::cuda::CUDAStream) override {}
  SnapshotInfo snapshot(c10::MempoolId_t, bool) override { return {}; }
  void beginAllocateToPool(c10::DeviceIndex, c10::MempoolId_t,
                           std::function<bool(cudaStream_t)>) override {}
  void endAllocateToPool(c10::DeviceIndex, c10::MempoolId_t) override {}
  void releasePool(c10::DeviceIndex, c10::MempoolId_t) override {}
  ShareableHandle shareIpcHandle(void*) override { return {}; }
  std::shared_ptr<void> getIpcDevPtr(std::string) override { return nullptr; }
  void recordHistory(bool, CreateContextFn, size_t, RecordContext, bool,
                     const std::vector<std::string>&) override {}
  void attachOutOfMemoryObserver(OutOfMemoryObserver) override {}
  void attachAllocatorTraceTracker(AllocatorTraceTracker) override {}
  void enablePeerAccess(c10::DeviceIndex, c10::DeviceIndex) override {}
  cudaError_t memcpyAsync(void*, int, const void*, int, size_t, cudaStream_t, bool) override {
    return cudaSuccess;
  }
  std::shared_ptr<AllocatorState> getCheckpointState(c10::DeviceIndex, c10::MempoolId_t) override {
    return nullptr;
  }
  CheckpointDelta setCheckpointPoolState(c10::DeviceIndex,
                                         std::shared_ptr<AllocatorState>) override {
    return {};
  }
  std::string name() override { return "bare"; }
};

/// Notes what it is asked.
class Noting final : public Bare<CUDAAllocator> {
 public:
  std::vector<std::string> asked;

#if TORCH_VERSION_MINOR >= 12
  std::shared_ptr<c10::GatheredContext> getContextForPointer(const void*) override {
    asked.push_back("context");
    return nullptr;
  }
  void attachOomRejectionObserver(OomRejectionObserver) override { asked.push_back("rejections"); }
#endif
#if TORCH_VERSION_MINOR >= 13
  void markCaptureBegin(c10::DeviceIndex device) override {
    asked.push_back("begin " + std::to_string(device));
  }
  void markCaptureEnd(c10::DeviceIndex device) override {
    asked.push_back("end " + std::to_string(device));
  }
  c10::DataPtr allocateWithAddress(size_t bytes, void*) override {
    asked.push_back("address for " + std::to_string(bytes));
    return {};
  }
#endif
#if TORCH_VERSION_MINOR >= 14
  bool supportsUserMetadata() override {
    asked.push_back("metadata?");
    return true;
  }
  void annotateMemory(const void*, const std::string& metadata) override {
    asked.push_back("annotate " + metadata);
  }
#endif
};

struct InFront final : Bare<NewerAllocator> {
  explicit InFront(CUDAAllocator& base) : Bare(&base) {}
};

}  // namespace

TEST_CASE("law 12: PyTorch's allocator is told of captures, in front of which we stand") {
  Noting base;
  InFront ours(base);
  gravure::torch_private::tellCaptureBegan(ours, 1);
  gravure::torch_private::tellCaptureEnded(ours, 1);
  const auto expected = TORCH_VERSION_MINOR >= 13 ? std::vector<std::string>{"begin 1", "end 1"}
                                                  : std::vector<std::string>{};
  CHECK(base.asked == expected);
}

TEST_CASE("what an allocator may be asked since torch 2.12 reaches PyTorch's own") {
  Noting base;
  InFront ours(base);
  std::vector<std::string> expected;
#if TORCH_VERSION_MINOR >= 12
  (void)ours.getContextForPointer(nullptr);
  ours.attachOomRejectionObserver({});
  expected = {"context", "rejections"};
#endif
#if TORCH_VERSION_MINOR >= 13
  (void)ours.allocateWithAddress(8, nullptr);
  expected.push_back("address for 8");
#endif
#if TORCH_VERSION_MINOR >= 14
  CHECK(ours.supportsUserMetadata());
  ours.annotateMemory(nullptr, "mine");
  expected.insert(expected.end(), {"metadata?", "annotate mine"});
#endif
  CHECK(base.asked == expected);
}
