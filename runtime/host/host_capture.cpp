#include "runtime/host/host_capture.h"

#include "ir/core/location.h"
#include "ir/facts/op_facts.h"
#include "ir/facts/value_types.h"
#include "runtime/device/arena_session.h"
#include "runtime/device/call_faults.h"
#include "runtime/device/kernel_settings.h"
#include "runtime/device/rng.h"
#include "runtime/host/host_allocator.h"
#include "runtime/host/host_slab.h"
#include "runtime/host/host_work.h"
#include "runtime/layout/recorder.h"
#include "runtime/program/collectives.h"
#include "runtime/ranks/process_group.h"
#include "runtime/results/results.h"

#include <ATen/Context.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/ScopeExit.h>
#include <llvm/ADT/DenseMap.h>
#include <llvm/ADT/DenseSet.h>
#include <llvm/ADT/STLExtras.h>

#include <atomic>

namespace gravure {
namespace {

/// One recorded call with its operands baked in.
struct BakedCall {
  const Call* call = nullptr;
  const OpFacts* facts = nullptr;  // looked up once
  torch::jit::Stack operands;
  c10::IValue rng;
  std::vector<const void*> addresses;  // where its tensors must land, in the order of the stack
  std::vector<c10::Storage> results;   // of a collective: what its waits were captured with
};

/// Calls visit(tensor) for each tensor on the stack, lists member by member.
template <typename Visit>
void forEachTensor(const torch::jit::Stack& stack, Visit&& visit) {
  for (const c10::IValue& value : stack) {
    if (value.isTensor() && value.toTensor().defined()) visit(value.toTensor());
    if (!value.isTensorList()) continue;
    for (const c10::IValue& member : value.toListRef()) visit(member.toTensor());
  }
}

/// With lists of its own: some kernels write into a list that they are given, as that of
/// `_unsafe_masked_index` does.
torch::jit::Stack copyOf(const torch::jit::Stack& operands) {
  torch::jit::Stack copied = operands;
  for (c10::IValue& value : copied) {
    if (value.isList()) value = value.toList().copy();
  }
  return copied;
}

/// The same memory, in tensors of our own.
torch::jit::Stack aliasesOf(const torch::jit::Stack& operands) {
  torch::jit::Stack aliases = copyOf(operands);
  for (c10::IValue& value : aliases) {
    if (value.isTensor() && value.toTensor().defined()) value = shallowCopy(value.toTensor());
    if (!value.isList()) continue;
    c10::List<c10::IValue> members = value.toList();
    for (size_t i = 0; i < members.size(); ++i) {
      const c10::IValue member = members.get(i);
      const bool tensor = member.isTensor() && member.toTensor().defined();
      if (tensor) members.set(i, shallowCopy(member.toTensor()));
    }
  }
  return aliases;
}

using Storages = llvm::DenseSet<const c10::StorageImpl*>;

/// An address, as CUDA bakes it in: a graph keeps nothing alive that is its caller's. What the capture
/// `made` is its own, and a number on its way to a Tensor parameter is baked in by its value.
void bakeAddress(c10::IValue& value, const Storages& made) {
  if (!value.isTensor() || !value.toTensor().defined() || !value.toTensor().has_storage()) return;
  const at::Tensor& tensor = value.toTensor();
  const bool own = tensor.unsafeGetTensorImpl()->is_wrapped_number() ||
                   made.contains(tensor.storage().unsafeGetStorageImpl()) ||
                   inHostArena(tensor.storage().data());
  if (!own) value = withoutOwner(tensor);
}
void bakeAddresses(torch::jit::Stack& operands, const Storages& made) {
  for (c10::IValue& value : operands) {
    bakeAddress(value, made);
    if (!value.isList()) continue;
    c10::List<c10::IValue> members = value.toList();
    for (size_t i = 0; i < members.size(); ++i) {
      c10::IValue member = members.get(i);
      bakeAddress(member, made);
      members.set(i, std::move(member));
    }
  }
}

/// Has attention choose its kernels as at the capture: a graph keeps those that it was captured with.
class AttentionAsCaptured {
 public:
  static AttentionAsCaptured now() {
    const at::Context& context = at::globalContext();
    return {context.userEnabledFlashSDP(), context.userEnabledMemEfficientSDP(),
            context.userEnabledMathSDP()};
  }
  void choose() const {
    at::Context& context = at::globalContext();
    context.setSDPUseFlash(flash_);
    context.setSDPUseMemEfficient(memoryEfficient_);
    context.setSDPUseMath(math_);
  }

 private:
  AttentionAsCaptured(bool flash, bool memoryEfficient, bool math)
      : flash_(flash), memoryEfficient_(memoryEfficient), math_(math) {}
  bool flash_, memoryEfficient_, math_;
};

class HostExecutable final : public Executable {
 public:
  HostExecutable(Device& device, std::vector<BakedCall> calls, CapturedWork work,
                 std::vector<size_t> ends)
      : device_(device), calls_(std::move(calls)), work_(std::move(work)), ends_(std::move(ends)) {}

  const CapturedWork& work() const override { return work_; }
  /// A node a call that works, by numbers that no profiler gives: for tests of what is told of them.
  TraceNumbers traceNumbers() const override {
    constexpr uint64_t kNobodys = uint64_t{1} << 62;
    return {.first = kNobodys | uint64_t{number_} << 32, .ends = ends_};
  }
  void write(size_t node, const uint8_t* bytes) override {
    passCall("the writing of a kernel's parameters");
    TORCH_INTERNAL_ASSERT(work_.at(node).writable);
    writeNumbers(calls_.at(node).operands, bytes);
  }

  void replay() override {
    device_.passFaultPoint(FaultPoint::Launch);
    ArenaSession* session = ArenaSession::current();
    TORCH_INTERNAL_ASSERT(session && session->slab(), "a replay outside a step");
    const bool otherwise = KernelSettings::now() != settings_;
    const AttentionAsCaptured now = AttentionAsCaptured::now();
    const auto restore = c10::make_scope_exit([&] {
      if (otherwise) now.choose();
    });
    if (otherwise) attention_.choose();
    const BakedCall* running = nullptr;
    try {
      for (const BakedCall& baked : calls_) {
        running = &baked;
        replayCall(baked, *session);
      }
    } catch (c10::Error& error) {
      addLocation(error, running->call->node);
      stack_.clear();
      started_.clear();
      throw PartialReplay(error);
    } catch (...) {  // what Python raised
      stack_.clear();
      started_.clear();
      throw;
    }
    session->leaveCall();
  }

 private:
  void replayCall(const BakedCall& baked, ArenaSession& session) {
    const Call& call = *baked.call;
    const OpFacts& facts = *baked.facts;
    session.enterCall(call.position);
    stack_ = copyOf(baked.operands);
    if (facts.wait) waitForStarted();
    if (baked.rng.isNone()) {
      call.run(stack_);
    } else {
      RngScope scope(device_.tensorDevice(), baked.rng);
      call.run(stack_);
    }
    if (facts.waitsInside) putResults(baked, session);
    size_t i = 0;
    forEachTensor(stack_, [&](const at::Tensor& tensor) {
      TORCH_CHECK(i < baked.addresses.size() && tensor.const_data_ptr() == baked.addresses[i],
                  "the host device replays: ", describeWithSource(call.node), " put result ", i,
                  " at another address than it was captured with");
      ++i;
    });
    if (leavesOpen(facts)) keepStarted(baked);
    stack_.clear();
    for (const DeadBlock& block : call.dying) {
      device_.poison(session.slab()->base() + block.offset, block.bytes);
    }
  }

  /// Where the capture had them: what else such code allocates varies from run to run.
  void putResults(const BakedCall& baked, ArenaSession& session) {
    session.leaveCall();
    std::vector<at::Tensor> results, copies;
    forEachTensor(stack_, [&](const at::Tensor& tensor) { results.push_back(tensor); });
    TORCH_INTERNAL_ASSERT(results.size() == baked.addresses.size());
    // One may lie where another one belongs.
    for (const at::Tensor& result : results) copies.push_back(result.clone());
    stack_.clear();
    for (size_t i = 0; i < results.size(); ++i) {
      if (results[i].const_data_ptr() == baked.addresses[i]) continue;
      results[i] = at::from_blob(const_cast<void*>(baked.addresses[i]), results[i].sizes(),
                                 results[i].strides(), results[i].options());
    }
    for (size_t i = 0; i < results.size(); ++i) results[i].copy_(copies[i]);
    for (at::Tensor& result : results) stack_.emplace_back(std::move(result));
  }

  /// c10d knows a started collective by the storage of its result, which each replay makes anew.
  void keepStarted(const BakedCall& baked) {
    std::vector<at::Tensor> results;
    forEachTensor(stack_, [&](const at::Tensor& tensor) { results.push_back(tensor); });
    TORCH_INTERNAL_ASSERT(results.size() == baked.results.size());
    for (size_t i = 0; i < results.size(); ++i)
      started_[baked.results[i].unsafeGetStorageImpl()] = results[i];
  }

  void waitForStarted() {
    const auto at = started_.find(stack_[0].toTensor().storage().unsafeGetStorageImpl());
    if (at == started_.end()) return;  // waited for before
    stack_[0] = at->second;
    started_.erase(at);
  }

  static uint32_t nextNumber() {
    static std::atomic<uint32_t> last{0};
    return ++last;
  }

  Device& device_;
  std::vector<BakedCall> calls_;
  const CapturedWork work_;         // one a call, where it was watched
  const std::vector<size_t> ends_;  // by call of the capture: how many of them work
  const uint32_t number_ = nextNumber();
  const KernelSettings settings_ = KernelSettings::now();
  const AttentionAsCaptured attention_ = AttentionAsCaptured::now();
  torch::jit::Stack stack_;
  llvm::DenseMap<const c10::StorageImpl*, at::Tensor> started_;
};

/// Makes the results that a recorded call would return, with their addresses and without their values.
class ResultForger {
 public:
  ResultForger(const Call& call, const torch::jit::Stack& operands, Device& device)
      : call_(call), device_(device), session_(*ArenaSession::current()) {
    for (const c10::IValue& operand : operands) collect(operand);
  }

  torch::jit::Stack forge() {
    const RecordedCall& recorded = call_.recorded;
    torch::jit::Stack results;
    size_t next = 0;
    for (int32_t shape : recorded.shape) {
      if (shape == RecordedCall::kNone) {
        results.emplace_back();
      } else if (shape == RecordedCall::kUndefinedTensor) {
        results.emplace_back(at::Tensor());
      } else if (shape == RecordedCall::kTensor) {
        results.emplace_back(forge(recorded.tensors[next++]));
      } else {
        c10::List<at::Tensor> members;
        for (int32_t i = 0; i < shape; ++i) members.push_back(forge(recorded.tensors[next++]));
        results.emplace_back(std::move(members));
      }
    }
    return results;
  }

 private:
  void collect(const c10::IValue& value) {
    if (value.isTensor()) {
      if (value.toTensor().defined()) operands_.push_back(value.toTensor());
    } else if (value.isList()) {
      for (const c10::IValue& member : value.toListRef()) collect(member);
    }
  }

  at::Tensor forge(const RecordedTensor& recorded) {
    TORCH_CHECK(recorded.plain, "its result is no strided tensor");
    c10::Storage storage;
    int64_t offset = recorded.byteOffset;
    if (recorded.operand >= 0) {
      TORCH_INTERNAL_ASSERT(static_cast<size_t>(recorded.operand) < operands_.size());
      const at::Tensor& operand = operands_[recorded.operand];
      storage = operand.storage();
      offset += byteOffset(operand);
    } else {
      storage = plannedStorage(recorded);
    }
    const auto itemsize = static_cast<int64_t>(c10::elementSize(recorded.dtype));
    auto tensor = at::detail::make_tensor<c10::TensorImpl>(
        std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU),
        c10::scalarTypeToTypeMeta(recorded.dtype));
    tensor.unsafeGetTensorImpl()->set_sizes_and_strides(recorded.sizes, recorded.strides,
                                                        offset / itemsize);
    tensor._set_conj(recorded.conjugate);
    tensor._set_neg(recorded.negative);
    return tensor;
  }

  /// The planned block of a result that the call allocates.
  c10::Storage plannedStorage(const RecordedTensor& recorded) {
    if (recorded.storageBytes == 0) return storageAt({nullptr, c10::Device(c10::kCPU)}, 0);
    TORCH_CHECK(recorded.ordinal >= 0,
                "its result lies in memory that it neither allocates nor is given");
    device_.passFaultPoint(FaultPoint::Allocation);
    const auto& row = (*session_.plan())[call_.position];
    const auto at = static_cast<size_t>(recorded.row);
    // A loose row's other allocations vary; a collective's do with the backend's threads, and replays
    // check where its results lie, or put them there.
    const bool loose = recorded.row >= 0 && row.at(at).loose;
    const bool planned =
        recorded.row >= 0 && row.at(at).offset >= 0 && (!loose || factsOf(call_.node).collective);
    TORCH_CHECK(planned, "its allocation is not in the plan");
    return storageAt(hostArenaPtr(session_.slab()->base() + row[at].offset), recorded.storageBytes);
  }

  static c10::Storage storageAt(c10::DataPtr memory, int64_t bytes) {
    return c10::Storage(c10::Storage::use_byte_size_t(), bytes, std::move(memory),
                        c10::GetAllocator(c10::kCPU), /*resizable=*/true);
  }

  const Call& call_;
  Device& device_;
  ArenaSession& session_;
  std::vector<at::Tensor> operands_;
};

thread_local bool capturing = false;

class HostCapture final : public Capture {
 public:
  explicit HostCapture(Device& device) : device_(device) {
    TORCH_CHECK(!capturing,
                "operation not permitted when the host device is capturing: another capture");
    device.passFaultPoint(FaultPoint::CaptureBegin);
    capturing = true;
  }
  ~HostCapture() override { capturing = false; }

  bool watchWork(uint8_t paint) override {
    paint_ = paint;
    return true;
  }

  void call(const Call& call, const c10::IValue& rng, torch::jit::Stack& stack) override {
    bake(call, rng, stack);
    ends_.push_back(calls_.size());
  }

  std::unique_ptr<Executable> finish() override {
    end();
    return std::make_unique<HostExecutable>(device_, std::move(calls_), std::move(work_),
                                            std::move(ends_));
  }

  CapturedWork endTrial() override {
    end();
    return std::move(work_);
  }

 private:
  void bake(const Call& call, const c10::IValue& rng, torch::jit::Stack& stack) {
    device_.passFaultPoint(FaultPoint::CaptureCall);
    ++seen_;
    if (const auto reason = refusedInCapture(call, stack, rng)) refuse(call, *reason);
    noteDevices(call);
    checkCommunication(call, stack);
    const OpFacts& facts = factsOf(call.node);
    if (facts.numbersOnly) {
      call.run(stack);  // works on numbers and sizes alone; CUDA would run it at capture, too
      return;
    }
    if (!call.recorded.recorded) refuse(call, "it was not seen in a warm-up run");
    if (call.recorded.returnsOther)
      refuse(call, "it returns a number, which only the device knows");
    BakedCall baked{&call, &facts, aliasesOf(stack), rng, {}, {}};
    try {
      stack = ResultForger(call, baked.operands, device_).forge();
    } catch (c10::Error& error) {
      error.add_context("operation not permitted when the host device is capturing: " +
                        describeWithSource(call.node));
      throw;
    }
    forEachTensor(stack,
                  [&](const at::Tensor& t) { baked.addresses.push_back(t.const_data_ptr()); });
    noteMade(stack, baked.operands);
    bakeAddresses(baked.operands, made_);
    if (leavesOpen(facts)) open(baked, stack);
    if (onlyViews(call)) return;
    if (paint_) work_.push_back(workOf(call, seen_, baked.operands, *paint_));
    calls_.push_back(std::move(baked));
  }

  void end() {
    capturing = false;
    device_.passFaultPoint(FaultPoint::CaptureEnd);
    TORCH_CHECK(open_.empty(), "the host device ends a capture: a collective in it was not waited "
                               "for, so its stream is not joined");
  }

  [[noreturn]] static void refuse(const Call& call, const std::string& reason) {
    refuseCapture("operation not permitted when the host device is capturing: " +
                  describeWithSource(call.node) + ": " + reason);
  }

  /// What NCCL and PyTorch refuse: a group's first collective, which makes its communicator; and a wait
  /// for a collective that is not in this graph.
  void checkCommunication(const Call& call, const torch::jit::Stack& operands) {
    const OpFacts& facts = factsOf(call.node);
    const auto isFirst = [&](const std::string& group) {
      return !hasCommunicated(group, device_.tensorDevice());
    };
    if (facts.collective && llvm::any_of(groupNamesOf(call.node), isFirst)) {
      refuse(call, "it is the first collective of its group, whose communicator would be made now");
    }
    if (!facts.wait) return;
    const auto* storage = operands[0].toTensor().storage().unsafeGetStorageImpl();
    if (!open_.erase(storage) && !waited_.contains(storage)) {
      refuse(call, "it waits for a collective that was not captured with it");
    }
    waited_.insert(storage);
  }

  void open(BakedCall& baked, const torch::jit::Stack& results) {
    forEachTensor(results, [&](const at::Tensor& tensor) {
      baked.results.push_back(tensor.storage());
      open_.insert(tensor.storage().unsafeGetStorageImpl());
    });
  }

  void noteMade(const torch::jit::Stack& results, const torch::jit::Stack& operands) {
    Storages given;
    const auto visitStorages = [](const torch::jit::Stack& values, const auto& visit) {
      forEachTensor(values, [&](const at::Tensor& tensor) {
        if (tensor.has_storage()) visit(tensor.storage().unsafeGetStorageImpl());
      });
    };
    visitStorages(operands, [&](const c10::StorageImpl* each) { given.insert(each); });
    visitStorages(results, [&](const c10::StorageImpl* each) {
      if (!given.contains(each)) made_.insert(each);
    });
  }

  /// Work of two devices cannot be in one graph.
  void noteDevices(const Call& call) {
    for (const Value* output : call.node->outputs()) {
      const auto device = deviceOf(output);
      if (!device) continue;
      (device->is_cpu() ? onCpu_ : onAccelerator_) = true;
    }
    if (onCpu_ && onAccelerator_)
      refuse(call, "it works on tensors of another device than the graph's");
  }

  /// A call that only looks at its operands' memory has no work to replay.
  static bool onlyViews(const Call& call) {
    const OpFacts& facts = factsOf(call.node);
    if (facts.writes || facts.wait || call.draws || call.recorded.tensors.empty()) return false;
    for (const RecordedTensor& tensor : call.recorded.tensors) {
      if (tensor.operand < 0) return false;
    }
    return call.dying.empty();
  }

  Device& device_;
  std::vector<BakedCall> calls_;
  std::vector<size_t> ends_;      // by call: how many are in calls_
  std::optional<uint8_t> paint_;  // watched
  CapturedWork work_;
  int32_t seen_ = -1;       // the call that is recorded, counted from 0
  Storages open_, waited_;  // by the storage of a collective's result
  Storages made_;           // outside of the arena, too
  bool onCpu_ = false, onAccelerator_ = false;
};

}  // namespace

std::unique_ptr<Capture> beginHostCapture(Device& device) {
  return std::make_unique<HostCapture>(device);
}

}  // namespace gravure
