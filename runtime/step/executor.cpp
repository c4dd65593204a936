#include "runtime/step/executor.h"

#include "ir/core/counted.h"
#include "ir/core/location.h"
#include "runtime/device/rng.h"
#include "runtime/device/step_mark.h"
#include "runtime/layout/misplaced_results.h"
#include "runtime/program/guards.h"
#include "runtime/ranks/communication.h"
#include "runtime/results/address_remainder.h"
#include "runtime/results/results.h"
#include "runtime/results/tensor_copies.h"
#include "runtime/results/watched_operands.h"
#include "runtime/step/attention_seeds.h"
#include "runtime/step/seal.h"

#include <ATen/ops/empty_strided.h>
#include <c10/util/ScopeExit.h>

#include <algorithm>
#include <optional>
#include <utility>

namespace gravure {

void RemarkOnce::missed(const std::string& name, const Node* node, const std::string& message) {
  missedAs(message, name, node, message);
}

void RemarkOnce::missedAs(const std::string& key, const std::string& name, const Node* node,
                          const std::string& message) {
  if (!made_.insert(name + '\0' + (node ? describe(node) : "") + '\0' + key).second) return;
  if (node) {
    remarks_.add(RemarkKind::Missed, "runtime", name, node, message);
  } else {
    remarks_.add(RemarkKind::Missed, "runtime", name, message);
  }
}

void RemarkOnce::patched(const Node* node, const NumberPatches& patches) {
  remarks_.add(RemarkKind::Passed, "runtime", "numbers-written", node,
               counted(static_cast<int64_t>(patches.numbers().size()), "number") + " in " +
                   counted(patches.kernels(), "kernel") + ": written before each replay");
}

void RemarkOnce::baked(const Node* node, size_t operand, const std::string& why) {
  remarks_.add(
      RemarkKind::Analysis, "runtime", "number-baked", node,
      "operand %" + node->input(operand)->debugName() +
          " stays as it was captured, and with another value no replay is possible: " + why);
}

void RemarkOnce::capturedLate(const Node* node, int failures) {
  remarks_.add(RemarkKind::Analysis, "runtime", "captured-late", node,
               "captured after " + std::to_string(failures) +
                   (failures > 1 ? " captures that failed" : " capture that failed"));
}

Executor::Executor(EntryCode& code, Device& device, RuntimeStats& stats, RemarkOnce& remarks,
                   const RuntimeOptions& options, Communication* communication)
    : code_(code), device_(device), stats_(stats), remarks_(remarks), options_(options),
      communication_(communication) {
  frame_.resize(code.slots);
  std::vector<bool> inside(code.slots, false);
  const auto mark = [&](const auto& slots, bool value) {
    for (const Slot slot : slots) {
      if (slot != kNoSlot) inside[slot] = value;
    }
  };
  for (const Launch& launch : code.launches) {
    for (const Call& call : launch.calls) mark(call.outputs, true);
    mark(launch.outputs, false);
  }
  for (size_t slot = 0; slot < inside.size(); ++slot) {
    if (!inside[slot]) outer_.push_back(static_cast<Slot>(slot));
  }
}

void Executor::clear() {
  if (ranInside_) {
    for (c10::IValue& value : frame_) value = c10::IValue();
  } else {
    for (const Slot slot : outer_) frame_[slot] = c10::IValue();
  }
  ranInside_ = false;
  stack_.clear();
}

void Executor::runUncaptured(Recorder* recorder, ArenaSession* session) {
  recorder_ = recorder;
  session_ = session;
  served_ = nullptr;
  seal_ = nullptr;
  runAll(code_.instructions);
}

void Executor::runTimed() {
  timed_ = true;
  const auto over = c10::make_scope_exit([this] { timed_ = false; });
  runUncaptured();
}

bool Executor::runServed(ServedEntry& served, ArenaSession& session, const Seal* seal) {
  recorder_ = nullptr;
  session_ = &session;
  served_ = &served;
  seal_ = seal;
  runAll(code_.instructions);
  return seal_ != nullptr;
}

bool Executor::runLaunches(ServedEntry& served, ArenaSession& session, const Seal& seal,
                           const std::vector<c10::IValue>& inputs) {
  recorder_ = nullptr;
  session_ = &session;
  served_ = &served;
  seal_ = &seal;
  inputs_ = &inputs;
  const auto over = c10::make_scope_exit([this] { inputs_ = nullptr; });
  session.leaveCall();
  for (size_t i = 0; i < code_.launches.size(); ++i) {
    if (seal_) {
      replay(*seal_->launch(i).captured, code_.launches[i]);
    } else {
      runLaunch(static_cast<uint32_t>(i));
    }
  }
  return seal_ != nullptr;
}

void Executor::runAll(const std::vector<Instruction>& instructions) {
  for (const Instruction& instruction : instructions) {
    switch (instruction.kind) {
      case Instruction::Kind::Call: runHostCall(code_.calls[instruction.index]); break;
      case Instruction::Kind::Launch: runLaunch(instruction.index); break;
      case Instruction::Kind::Stage: runStage(instruction.index); break;
      case Instruction::Kind::Own: runOwn(code_.owns[instruction.index]); break;
      case Instruction::Kind::Branch: runBranch(code_.branches[instruction.index]); break;
    }
  }
}

void Executor::runHostCall(Call& call) {
  const StepMark mark([&] { return "gravure: on the host " + describeWithSource(call.node); });
  runCall(call);
  ++stats_.hostCalls;
}

void Executor::runCall(Call& call) {
  std::optional<CallMark> mark;
  if (timed_) mark.emplace(call.position);
  if (call.quick && !recorder_ && call.dying.empty() && call.quick(call, frame_)) {
    releaseSlots(call.releases, frame_);
    return;
  }
  // A number wrapped on its way to a Tensor parameter is not the operator's allocation.
  if (session_) session_->leaveCall();
  const bool handsOver = call.letsGo && !served_;
  if (handsOver) handOverOperands(call);
  call.push(frame_, stack_);
  if (readsSeeds(call) && !device_.callerCaptures()) seedsToHost(call, stack_);
  if (session_) session_->enterCall(call.position);
  if (recorder_) recorder_->before(call, frame_);
  if (handsOver) releaseOperands(call);
  try {
    if (call.rng == kNoSlot) {
      call.run(stack_);
    } else {
      RngScope scope(device_.tensorDevice(), frame_[call.rng]);
      call.run(stack_);
    }
  } catch (c10::Error& error) {
    addLocation(error, call.node);
    if (call.rng != kNoSlot && frame_[call.rng].isGenerator() && device_.callerCaptures()) {
      error.add_context("it draws from a random state of the program's own, which the graph that "
                        "you are capturing was not told of: run the step outside of it, or "
                        "checkpoint with preserve_rng_state=False");
    }
    throw;
  }
  if (recorder_) recorder_->after(call, stack_);
  if (served_ && anyMisplaced(call, stack_, *session_)) copyMisplaced(call, stack_, *session_);
  call.store(stack_, frame_);
  releaseSlots(call.releases, frame_);
  if (served_ && !call.dying.empty()) poison(call.dying);
}

/// Puts those that nobody reads behind the call into its hands: it gives their memory back while it runs.
void Executor::handOverOperands(const Call& call) {
  for (const Slot slot : call.releases) {
    c10::IValue& value = frame_[slot];
    if (slot != call.rng && value.isTensor()) value = handOver(value.toTensor());
  }
}

void Executor::releaseOperands(const Call& call) {
  for (const Slot slot : call.releases) {
    if (slot != call.rng) frame_[slot] = c10::IValue();
  }
}

void Executor::poison(const std::vector<DeadBlock>& blocks) {
  for (const DeadBlock& block : blocks)
    device_.poison(session_->slab()->base() + block.offset, block.bytes);
}

void Executor::runLaunch(uint32_t index) {
  Launch& launch = code_.launches[index];
  if (seal_ && !seal_->launch(index).holds(frame_)) seal_ = nullptr;
  if (seal_) {
    session_->leaveCall();
    replay(*seal_->launch(index).captured, launch);
  } else if (served_) {
    runPartition(served_->partitions[index], launch);
  } else {
    runCalls(launch);
  }
  releaseSlots(launch.releases, frame_);
}

std::string Executor::nameOf(const char* what, const Launch& launch) const {
  return std::string("gravure: ") + what + " " + code_.entry->name + ", partition " +
         std::to_string(launch.index) + ", " + std::to_string(launch.calls.size()) + " calls";
}

void Executor::runCalls(Launch& launch) {
  const StepMark mark([&] { return nameOf("uncaptured", launch); });
  if (served_) detachOperands(launch);
  ranInside_ = true;
  for (Call& call : launch.calls) runCall(call);
}

void Executor::runPartition(Partition& partition, Launch& launch) {
  session_->leaveCall();  // what the runtime itself allocates is not the program's
  const bool together = communication_ && !launch.groups.empty() && communication_->capturing();
  // Ranks would have to try again together.
  const bool alone = !communication_ || launch.groups.empty();
  if (partition.state() == PartitionState::Quarantined && alone) (void)partition.triesAgain();
  if (partition.state() == PartitionState::WarmedUp) {
    if (!captureNow(partition, launch)) return;
  } else if (together) {
    const bool captured = partition.state() == PartitionState::Captured;
    keepIfCapturedByAll(partition, launch, captured ? "" : "it is quarantined there");
  }
  if (partition.state() == PartitionState::Quarantined) return runCalls(launch);
  CapturedPartition& captured = *partition.captured();
  if (const int64_t changed = captured.changedOperand(launch, frame_); changed >= 0) {
    const Value* operand = launch.node->input(changed);
    const std::string found = captured.difference(changed, frame_[launch.operands[changed]]);
    remarks_.missedAs(std::to_string(changed), "guard-failed", launch.node,
                      "operand %" + operand->debugName() + ": " + found +
                          "; its calls run one by one");
    return runCalls(launch);
  }
  if (!numbersHold(partition, launch)) return runCalls(launch);
  replay(captured, launch);
}

/// Whether it may be replayed with these numbers. Finds out by captures where they are of a kind that was
/// not seen before; a remark says why not.
bool Executor::numbersHold(Partition& partition, Launch& launch) {
  const CapturedPartition& captured = *partition.captured();
  if (captured.numbersHold(frame_)) return true;
  std::string why = captured.patches->whyNot(frame_, launch.node);
  if (why.empty()) {
    detachOperands(launch);
    returnLoans(launch);
    ranInside_ = true;
    const auto held = options_.whileCapturing ? options_.whileCapturing() : nullptr;
    try {
      if (partition.proveNumbers(launch, frame_, stack_, device_, *session_)) return true;
      why = captured.patches->whyNot(frame_, launch.node);
    } catch (const std::exception& error) {
      if (options_.isInterrupt && options_.isInterrupt(error)) throw;
      const auto* ours = dynamic_cast<const c10::Error*>(&error);
      why = std::string("whether its numbers may be written could not be found out: ") +
            (ours ? ours->what_without_backtrace() : error.what());
    }
  }
  // Said once an operand: behind the colon is a value, which may be another one in each step.
  remarks_.missedAs(why.substr(0, why.find(':')), "guard-failed", launch.node,
                    why + "; its calls run one by one");
  return false;
}

/// Its calls run one by one where the launch fails, and nothing ran.
void Executor::replay(CapturedPartition& captured, Launch& launch) {
  const StepMark mark([&] { return nameOf("replay", launch); });
  try {
    captured.replay(launch, frame_, inputs_);
  } catch (const PartialReplay& partial) {
    std::rethrow_exception(partial.cause);
  } catch (const c10::Error& error) {
    seal_ = nullptr;  // what this launch would have made lies elsewhere
    if (const auto* inputs = std::exchange(inputs_, nullptr)) {
      for (size_t i = 0; i < inputs->size(); ++i) frame_[code_.inputs[i]] = (*inputs)[i];
    }
    remarks_.missed("launch-failed", launch.node,
                    std::string(error.what_without_backtrace()) + "; its calls run one by one");
    return runCalls(launch);
  }
  ++stats_.replays;
  // What this throws must not be taken for a launch that failed: the calls would run twice.
  if (communication_ && !launch.groups.empty()) communication_->launched(launch);
}

/// Says what becomes of the numbers that a captured partition takes.
void Executor::remarkNumbers(const CapturedPartition& captured, const Launch& launch) {
  if (captured.patches) remarks_.patched(launch.node, *captured.patches);
  for (const auto& [operand, why] : captured.baked) remarks_.baked(launch.node, operand, why);
}

/// Captures; if that fails, quarantines the partition, runs its calls, and returns false.
bool Executor::captureNow(Partition& partition, Launch& launch) {
  const StepMark mark([&] { return nameOf("capture", launch); });
  if (options_.onCapture) {
    const auto& all = served_->partitions;
    const auto waits = [](const Partition& p) { return p.state() == PartitionState::WarmedUp; };
    const int64_t left = std::count_if(all.begin(), all.end(), waits);
    const auto total = static_cast<int64_t>(all.size());
    options_.onCapture(code_.entry->name, total - left, total);
  }
  detachOperands(launch);
  returnLoans(launch);
  ranInside_ = true;
  const bool together = communication_ && !launch.groups.empty() && communication_->capturing();
  const int failures = partition.failures();
  std::string failure;
  try {
    const auto held = options_.whileCapturing ? options_.whileCapturing() : nullptr;
    partition.capture(launch, code_, frame_, stack_, device_, *session_);
  } catch (const std::exception& error) {
    // An operator that Python implements throws what Python raised, which is no c10::Error.
    const auto* ours = dynamic_cast<const c10::Error*>(&error);
    failure = ours ? ours->what_without_backtrace() : error.what();
    if (options_.isInterrupt && options_.isInterrupt(error)) {
      if (together) (void)communication_->agreeOnCapture(failure);
      throw;
    }
    const bool ofProgram = dynamic_cast<const NotCapturable*>(&error) != nullptr;
    if (!options_.requireCapture) partition.quarantine(ofProgram || together);
  }
  const bool byAll = !together || keepIfCapturedByAll(partition, launch, failure);
  if (failure.empty()) {
    ++stats_.captures;
    if (byAll) remarkNumbers(*partition.captured(), launch);
  }
  if (failure.empty() && failures > 0) remarks_.capturedLate(launch.node, failures);
  TORCH_CHECK(failure.empty() || !options_.requireCapture, describe(launch.node),
              ": not captured: ", failure, "; ", reasonCure(HostReason::CaptureFailed));
  if (!failure.empty()) remarks_.missed("capture-failed", launch.node, failure);
  if (failure.empty() && byAll) return true;
  runCalls(launch);
  return false;
}

/// Tells the other ranks whether this one has captured the partition. False, and it is quarantined, if
/// one of them has not: a graph of collectives is replayed by all or by none.
bool Executor::keepIfCapturedByAll(Partition& partition, const Launch& launch,
                                   const std::string& failure) {
  const std::string elsewhere = communication_->agreeOnCapture(failure);
  if (elsewhere.empty()) return true;
  if (partition.state() == PartitionState::Captured) {
    partition.quarantine(/*forGood=*/true);
    TORCH_CHECK(!options_.requireCapture, describe(launch.node), ": not captured: ", elsewhere);
    remarks_.missed("captured-elsewhere-not", launch.node,
                    "quarantined, because not all ranks captured it: " + elsewhere);
  }
  return false;
}

void Executor::detachOperands(const Launch& launch) {
  for (Slot slot : launch.operands) {
    c10::IValue& value = frame_[slot];
    if (value.isTensor() && value.toTensor().defined() && value.toTensor().requires_grad()) {
      value = shallowCopy(value.toTensor());
    }
  }
}

/// What a capture keeps of a lent operand must not count as a holder of the loan.
void Executor::returnLoans(const Launch& launch) {
  for (Slot slot : launch.operands) {
    c10::IValue& value = frame_[slot];
    const bool input = code_.sources[slot] == SlotSource::Input;
    if (input && value.isTensor() && isLent(value.toTensor())) {
      value = unlent(value.toTensor(), session_->slab());
    }
  }
}

namespace {

/// The operand itself if it is laid out as the program's types say, else a copy that is. Where
/// elements share an address, another layout may hold other values in them, and is left as it is.
at::Tensor conform(const at::Tensor& tensor, const Value* staged) {
  const auto* type = staged->type()->castRaw<c10::TensorType>();
  const auto strides = type ? type->strides().concrete_sizes() : std::nullopt;
  if (!strides || strides->size() != tensor.sizes().size() || tensor.numel() == 0) return tensor;
  const bool same = isLaid(tensor, tensor.sizes(), *strides);
  if (same || overlapsItself(tensor.sizes(), *strides)) return tensor;
  at::Tensor copy = at::empty_strided(tensor.sizes(), *strides, tensor.options());
  setReads(copy, readsOf(*tensor.unsafeGetTensorImpl()));
  copy.copy_(tensor);
  return copy;
}

}  // namespace

int64_t stagedRemainder(const at::Tensor& buffer, const at::Tensor& value) {
  return isLaid(value, buffer.sizes(), buffer.strides()) ? addressRemainder(value) : 0;
}

namespace {

/// False where the launch's guard is to see the value itself, and to refuse it.
bool hasBuffer(const at::Tensor& buffer, const c10::IValue& value) {
  if (!buffer.defined() || !value.isTensor() || !value.toTensor().defined()) return false;
  if (readsOf(*value.toTensor().unsafeGetTensorImpl()) != readsOf(*buffer.unsafeGetTensorImpl()))
    return false;
  if (stagedRemainder(buffer, value.toTensor()) != addressRemainder(buffer)) return false;
  return !overlapsItself(buffer.sizes(), buffer.strides()) || sameLayout(buffer, value.toTensor());
}

}  // namespace

void Executor::runStage(uint32_t index) {
  Stage& stage = code_.stages[index];
  const StepMark mark([&] { return "gravure: stage inputs of " + code_.entry->name; });
  if (session_) session_->leaveCall();
  CopyBatches copies;
  if (recorder_) {
    stage.remainders.assign(stage.from.size(), 0);
    stage.reads.assign(stage.from.size(), {});
  }
  for (size_t i = 0; i < stage.from.size(); ++i) {
    const c10::IValue& value = frame_[stage.from[i]];
    if (served_ && hasBuffer(served_->staged[index][i], value)) {
      const at::Tensor& buffer = served_->staged[index][i];
      copies.add(buffer, value.toTensor());
      stats_.stagedBytes += static_cast<int64_t>(buffer.nbytes());
      frame_[stage.to[i]] = buffer;
    } else if (value.isTensor() && value.toTensor().defined()) {
      const at::Tensor operand = conform(value.toTensor(), stage.node->output(i));
      if (recorder_) {
        stage.remainders[i] = addressRemainder(operand);
        stage.reads[i] = readsOf(*operand.unsafeGetTensorImpl());
      }
      frame_[stage.to[i]] = operand;
    } else {
      frame_[stage.to[i]] = value;
    }
  }
  copies.run();
  releaseSlots(stage.releases, frame_);
}

/// True if the next replay may write there and nothing else keeps it from that: the arena, or memory
/// that a capture allocated elsewhere.
bool Executor::mustCopy(const Own& own, size_t i, const at::Tensor& tensor) const {
  if (!tensor.defined()) return false;
  if (inSlab(tensor, session_->slab().get())) return own.ownership[i] == Ownership::Copied;
  return code_.isMadeByLaunch(own.from[i]);
}

void Executor::runOwn(Own& own) {
  if (session_) session_->leaveCall();
  std::vector<CopySource> sources;
  llvm::SmallVector<Slot, 16> targets;
  for (size_t i = 0; i < own.from.size(); ++i) {
    const c10::IValue& value = frame_[own.from[i]];
    if (served_ && value.isTensor() && mustCopy(own, i, value.toTensor())) {
      sources.push_back({value.toTensor(), own.asEager[i]});
      targets.push_back(own.to[i]);
    } else {
      frame_[own.to[i]] = value;
    }
  }
  if (!sources.empty()) takeCopies(sources, targets);
  releaseSlots(own.releases, frame_);
  if (served_ && !own.dying.empty()) poison(own.dying);
}

void Executor::takeCopies(const std::vector<CopySource>& sources, llvm::ArrayRef<Slot> targets) {
  const StepMark mark([&] { return "gravure: copy results of " + code_.entry->name; });
  std::vector<at::Tensor> copies = ownedCopies(sources);
  for (size_t i = 0; i < copies.size(); ++i) {
    stats_.copiedResultBytes += static_cast<int64_t>(copies[i].nbytes());
    frame_[targets[i]] = std::move(copies[i]);
  }
}

void Executor::runBranch(Branch& branch) {
  const c10::IValue& condition = frame_[branch.condition];
  TORCH_CHECK(condition.isBool(), describe(branch.node), ": its condition is no bool");
  const int side = condition.toBool() ? 0 : 1;
  runAll(branch.body[side]);
  for (auto [from, to] : branch.moves[side]) frame_[to] = frame_[from];
  releaseSlots(branch.releases, frame_);
}

}  // namespace gravure
