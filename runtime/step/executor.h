#pragma once
// Runs the instructions of one entry: node by node, or with its partitions launched.

#include "ir/core/remark.h"
#include "runtime/device/arena_session.h"
#include "runtime/device/device.h"
#include "runtime/layout/recorder.h"
#include "runtime/program/instruction.h"
#include "runtime/results/results.h"
#include "runtime/runtime.h"
#include "runtime/step/partition.h"

#include <llvm/ADT/ArrayRef.h>

#include <set>
#include <string>
#include <utility>
#include <vector>

namespace gravure {

class Communication;
class Seal;

/// Remarks that many steps would make, each made once.
class RemarkOnce {
 public:
  explicit RemarkOnce(Remarks& remarks) : remarks_(remarks) {}
  void missed(const std::string& name, const Node* node, const std::string& message);
  /// `key` instead of `message` tells whether it was made before: addresses differ from step to step.
  void missedAs(const std::string& key, const std::string& name, const Node* node,
                const std::string& message);
  // No losses, and made at each capture:
  /// So many captures of `node` had failed before.
  void capturedLate(const Node* node, int failures);
  /// The number `operand` stays as it was captured.
  void baked(const Node* node, size_t operand, const std::string& why);
  /// These numbers are written before each replay.
  void patched(const Node* node, const NumberPatches& patches);

 private:
  Remarks& remarks_;
  std::set<std::string> made_;
};

/// What one entry keeps from step to step once its memory is planned.
struct ServedEntry {
  std::vector<Partition> partitions;  // one a launch
  /// [stage][operand]: buffers in the arena, or undefined.
  std::vector<std::vector<at::Tensor>> staged;
  std::vector<DeadBlock> dying;  // planned blocks that die with the entry; only for poisoning
};

/// addressRemainder of what a partition reads of `value`, uncaptured: itself if it is laid out as its staged
/// `buffer`, else a copy.
int64_t stagedRemainder(const at::Tensor& buffer, const at::Tensor& value);

/// Runs below autograd and autocast, as eager's kernels see it.
class Executor {
 public:
  Executor(EntryCode& code, Device& device, RuntimeStats& stats, RemarkOnce& remarks,
           const RuntimeOptions& options, Communication* communication = nullptr);

  /// Node by node, memory from PyTorch's allocator. `recorder` and `session` (or neither) see it.
  void runUncaptured(Recorder* recorder = nullptr, ArenaSession* session = nullptr);
  /// The same, and each call is marked (CallMark) for whoever watches.
  void runTimed();
  /// Partitions replayed, captured first where they are not yet; memory from the plan. With a `seal` that
  /// holds, nothing but what host nodes made is looked at any more. True if all was as that says.
  bool runServed(ServedEntry& served, ArenaSession& session, const Seal* seal);
  /// The launches of a seal alone, in order; the frame has the numbers that they take, and no inputs. These
  /// are taken from `inputs` where a launch fails, whose calls run one by one. True if none did.
  bool runLaunches(ServedEntry& served, ArenaSession& session, const Seal& seal,
                   const std::vector<c10::IValue>& inputs);

  Frame& frame() { return frame_; }
  /// Forgets all values. Keeps its memory.
  void clear();

 private:
  void runAll(const std::vector<Instruction>& instructions);
  void runHostCall(Call& call);
  void runCall(Call& call);
  void handOverOperands(const Call& call);
  void releaseOperands(const Call& call);
  /// For who watches: "gravure: replay forward, partition 2, 14 calls".
  std::string nameOf(const char* what, const Launch& launch) const;
  void runLaunch(uint32_t index);
  void runPartition(Partition& partition, Launch& launch);
  void replay(CapturedPartition& captured, Launch& launch);
  bool captureNow(Partition& partition, Launch& launch);
  bool numbersHold(Partition& partition, Launch& launch);
  void remarkNumbers(const CapturedPartition& captured, const Launch& launch);
  bool keepIfCapturedByAll(Partition& partition, const Launch& launch, const std::string& failure);
  void runCalls(Launch& launch);
  void runStage(uint32_t index);
  void runOwn(Own& own);
  void takeCopies(const std::vector<CopySource>& sources, llvm::ArrayRef<Slot> targets);
  bool mustCopy(const Own& own, size_t i, const at::Tensor& tensor) const;
  void runBranch(Branch& branch);
  void detachOperands(const Launch& launch);
  void returnLoans(const Launch& launch);
  void poison(const std::vector<DeadBlock>& blocks);

  EntryCode& code_;
  Device& device_;
  RuntimeStats& stats_;
  RemarkOnce& remarks_;
  const RuntimeOptions& options_;
  Communication* const communication_;  // null without collectives in partitions
  Frame frame_;
  /// Slots that a step fills even if it only replays; the others are inside partitions.
  std::vector<Slot> outer_;
  bool ranInside_ = false;  // since clear(): calls of a partition, one by one
  torch::jit::Stack stack_;
  Recorder* recorder_ = nullptr;
  ArenaSession* session_ = nullptr;
  ServedEntry* served_ = nullptr;
  bool timed_ = false;                                // this step's calls are marked
  const std::vector<c10::IValue>* inputs_ = nullptr;  // that are not in the frame yet
  const Seal* seal_ = nullptr;  // of this step; nullptr once something in it was not as sealed
};

}  // namespace gravure
