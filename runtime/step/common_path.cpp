// How all ranks of a program with captured collectives run a step (law 10).

#include "runtime/step/runtime_impl.h"

#include <algorithm>

namespace gravure {
namespace {

bool waitsForCapture(const EntryState& entry) {
  const auto& launches = entry.code->launches;
  for (size_t i = 0; i < launches.size(); ++i) {
    if (launches[i].groups.empty()) continue;
    if (entry.served.partitions[i].state() == PartitionState::WarmedUp) return true;
  }
  return false;
}

}  // namespace

StepPath Runtime::Impl::commonPath(EntryState& entry, const std::vector<c10::IValue>& inputs,
                                   bool uncaptured) {
  const size_t index = &entry - entries_.data();
  if (!communication_->concerns(index)) return choosePath(entry, inputs, uncaptured);
  if (!communication_->groupsStand()) useNewGroups();
  refuseCollectives();
  if (communication_->votes(index)) {
    StepPath path = votedPath(entry, inputs, uncaptured);
    refuseCollectives();  // if a rank did not come
    return path;
  }
  StepPath path = choosePath(entry, inputs, uncaptured);
  const bool served = path.kind == StepPath::Kind::Served;
  return served && !entry.ranWithGroups ? StepPath::plain() : std::move(path);
}

StepPath Runtime::Impl::votedPath(EntryState& entry, const std::vector<c10::IValue>& inputs,
                                  bool uncaptured) {
  const size_t index = &entry - entries_.data();
  StepPath path;
  try {
    path = choosePath(entry, inputs, uncaptured);
  } catch (const c10::Error& error) {
    (void)communication_->vote(index, {Will::Throw, error.what_without_backtrace(), false});
    throw;
  }
  const Vote vote = voteOf(entry, path, uncaptured);
  const Decision decision = communication_->vote(index, vote);
  TORCH_CHECK(decision.will != Will::Throw, "another rank cannot run this step: ", decision.why);
  path.seal = nullptr;  // where another rank captures, each partition is kept only if all have it
  if (path.kind != StepPath::Kind::Served || decision.will == Will::Capture) return path;
  if (vote.will == Will::Capture && decision.will == Will::Leave) {
    // Without what a guard expected and found: addresses and numbers differ from step to step.
    const std::string key = decision.why.substr(0, decision.why.find("expected "));
    once_.missedAs(key, "rank-left", nullptr,
                   "entry '" + entry.code->entry->name +
                       "' ran uncaptured, because not all ranks could replay it: " + decision.why);
  }
  return StepPath::plain();
}

Vote Runtime::Impl::voteOf(const EntryState& entry, const StepPath& path, bool asked) const {
  if (asked) return {Will::Leave, "it was asked to run uncaptured", false};
  if (path.kind == StepPath::Kind::Recorded) return {Will::Wait, "it warms up", false};
  if (path.kind == StepPath::Kind::Plain && !layout_ && arenaRetryAt_ == 0) {
    return {Will::Wait, "its memory is not planned yet", false};
  }
  if (path.kind == StepPath::Kind::Plain) {
    return {Will::Leave, path.why.empty() ? "it runs uncaptured" : path.why, false};
  }
  if (!entry.ranWithGroups)
    return {Will::Wait, "this step makes the communicators of its groups", false};
  return {Will::Capture, "", waitsForCapture(entry)};
}

/// What was captured with groups that are gone is no longer good; what was planned is.
void Runtime::Impl::useNewGroups() {
  device_->synchronize();
  for (EntryState& entry : entries_) {
    forgetCaptures(entry);
    entry.ranWithGroups = false;
  }
}

void Runtime::Impl::refuseCollectives() {
  const std::string& why = communication_->refusal();
  if (why.empty() || options_.uncaptured) return;
  for (EntryState& entry : entries_) {
    for (size_t i = 0; i < entry.code->launches.size(); ++i) {
      const Launch& launch = entry.code->launches[i];
      Partition& partition = entry.served.partitions[i];
      if (launch.groups.empty() || partition.state() == PartitionState::Quarantined) continue;
      TORCH_CHECK(!options_.requireCapture, describe(launch.node), ": not captured: ", why);
      partition.quarantine(/*forGood=*/true);
      entry.seals.breakAll();
      remarks_.add(RemarkKind::Missed, "runtime", "collectives-refused", launch.node,
                   "its collectives are not captured: " + why);
    }
  }
}

}  // namespace gravure
