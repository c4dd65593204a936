#pragma once
// A program's collectives at run time: groups, the ranks' common plan (law 10), and the watch.
//
// docs/distributed.md says what ranks agree on, when, and why no more is needed.

#include "ir/core/remark.h"
#include "runtime/program/collectives.h"
#include "runtime/ranks/agreement.h"
#include "runtime/ranks/replay_watch.h"
#include "runtime/runtime.h"

#include <map>
#include <memory>
#include <string>
#include <vector>

namespace gravure {

class Communication {
 public:
  /// nullptr where no partition holds a collective: such a program pays nothing. Fills Launch::groups.
  static std::unique_ptr<Communication> of(std::vector<EntryCode>& codes, Device& device,
                                           const RuntimeOptions& options, Remarks& remarks);

  /// True if a partition of `entry` holds a collective; the rest is for such entries alone.
  bool concerns(size_t entry) const { return concerns_[entry]; }

  /// Before a step. True if the groups are those of the last step; if not, what was captured with the
  /// others is no longer good. Throws c10::Error if a replay hung.
  bool groupsStand();
  /// Finds the groups and compares with the other ranks, once for the groups that there are. "", or
  /// why nothing may be captured with a collective.
  const std::string& refusal();

  /// True while the ranks decide together how `entry` runs: until all have captured it, or always
  /// (RuntimeOptions::agree).
  bool votes(size_t entry) const { return refusal_.empty() && !steady_[entry] && agreement_; }
  /// How all ranks run `entry` this time.
  Decision vote(size_t entry, const Vote& vote);

  /// During a step, at a partition with collectives that some rank captures in this step: whether all
  /// have it. `failure`: why this rank has not, or "". "" if all have; else which rank has not, and why.
  std::string agreeOnCapture(const std::string& failure);
  bool capturing() const { return capturing_; }

  /// After a replay of a partition with collectives.
  void launched(const Launch& launch) { watch_->launched(watchIndex_.at(&launch)); }
  /// After a step that failed. Throws if a replay's groups were aborted.
  void stepFailed() {
    if (watch_) watch_->checkNow();
  }
  /// Nothing is watched, nor aborted, from then on, and no group held.
  void letGo();
  bool uses(const std::string& group) const;

 private:
  Communication(ProgramCollectives found, std::vector<EntryCode>& codes, Device& device,
                const RuntimeOptions& options, Remarks& remarks);
  std::string findGroups();
  std::string localRefusal() const;
  void begin();
  void watchLaunches();

  const ProgramCollectives found_;
  std::vector<EntryCode>& codes_;
  Device& device_;
  const RuntimeOptions& options_;
  Remarks& remarks_;
  std::vector<std::shared_ptr<ProcessGroup>> groups_;  // as found_.groups; empty before begin()
  std::unique_ptr<Agreement> agreement_;               // none where this rank is alone
  std::unique_ptr<ReplayWatch> watch_;
  std::map<const Launch*, size_t> watchIndex_;
  std::vector<bool> concerns_, steady_;  // by entry
  std::string refusal_;
  bool begun_ = false, stands_ = true, capturing_ = false;
};

}  // namespace gravure
