// How all ranks of a program with captured collectives run a step (law 10).
#include "ir/core/cudagraph_ops.h"
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

Runtime::Impl::Path Runtime::Impl::commonPath(EntryState& entry,
                                              const std::vector<c10::IValue>& inputs,
                                              bool uncaptured) {
  const size_t index = &entry - entries_.data();
  if (!communication_->concerns(index)) return choosePath(entry, inputs, uncaptured);
  if (!communication_->groupsStand()) useNewGroups();
  refuseCollectives();
  if (communication_->votes(index)) {
    const Path path = votedPath(entry, inputs, uncaptured);
    refuseCollectives();  // if a rank did not come
    return path;
  }
  const Path path = choosePath(entry, inputs, uncaptured);
  if (path != Path::Served || entry.ranWithGroups) return path;
  slab_->leave();
  return Path::Plain;
}

Runtime::Impl::Path Runtime::Impl::votedPath(EntryState& entry,
                                             const std::vector<c10::IValue>& inputs,
                                             bool uncaptured) {
  const size_t index = &entry - entries_.data();
  const bool overwritten = lentOverwritten_;
  (void)once_.takeLast();
  Path path = Path::Plain;
  try {
    path = choosePath(entry, inputs, uncaptured);
  } catch (const c10::Error& error) {
    (void)communication_->vote(index, {Will::Throw, error.what_without_backtrace(), false});
    throw;
  }
  const Vote vote = voteOf(entry, path, uncaptured);
  Verdict verdict;
  try {
    verdict = communication_->vote(index, vote);
    TORCH_CHECK(verdict.will != Will::Throw, "another rank cannot run this step: ", verdict.why);
  } catch (const c10::Error&) {
    if (path == Path::Served) slab_->leave();
    throw;
  }
  if (path != Path::Served || verdict.will == Will::Capture) return path;
  slab_->leave();
  lentOverwritten_ = overwritten;
  if (vote.will == Will::Capture && verdict.will == Will::Leave)
    once_.missedAs(verdict.why, "rank-left", nullptr,
                   "entry '" + entry.code->entry->name +
                       "' ran uncaptured, because not all ranks could replay it: " + verdict.why);
  return Path::Plain;
}

Vote Runtime::Impl::voteOf(const EntryState& entry, Path path, bool asked) {
  const std::string because = once_.takeLast();
  if (asked) return {Will::Leave, "it was asked to run uncaptured", false};
  if (path == Path::Recorded) return {Will::Wait, "it warms up", false};
  if (path == Path::Plain && !layout_ && arenaRetryAt_ == 0) {
    return {Will::Wait, "its memory is not planned yet", false};
  }
  if (path == Path::Plain) {
    return {Will::Leave, because.empty() ? "it runs uncaptured" : because, false};
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
      remarks_.add(RemarkKind::Missed, "runtime", "collectives-refused", launch.node,
                   "its collectives are not captured: " + why);
    }
  }
}

}  // namespace gravure
