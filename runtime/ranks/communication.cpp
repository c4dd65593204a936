#include "runtime/ranks/communication.h"

#include "runtime/ranks/collective_environment.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

namespace gravure {
namespace {

const char* environment(const char* name) { return std::getenv(name); }

}  // namespace

std::unique_ptr<Communication> Communication::of(std::vector<EntryCode>& codes, Device& device,
                                                 const RuntimeOptions& options, Remarks& remarks) {
  ProgramCollectives found = findCollectives(codes);
  if (!found.captured) return nullptr;
  return std::unique_ptr<Communication>(
      new Communication(std::move(found), codes, device, options, remarks));
}

Communication::Communication(ProgramCollectives found, std::vector<EntryCode>& codes,
                             Device& device, const RuntimeOptions& options, Remarks& remarks)
    : found_(std::move(found)), codes_(codes), device_(device), options_(options),
      remarks_(remarks), steady_(codes.size(), false) {
  for (const EntryCode& code : codes) {
    const auto& all = code.launches;
    concerns_.push_back(std::any_of(all.begin(), all.end(),
                                    [](const Launch& launch) { return !launch.groups.empty(); }));
  }
}

bool Communication::groupsStand() {
  capturing_ = false;
  if (watch_) watch_->check();
  const auto gone = [](const auto& group) { return !group->isCurrent(); };
  if (begun_ && std::any_of(groups_.begin(), groups_.end(), gone)) letGo();
  if (!refusal_.empty()) agreement_.reset();
  return std::exchange(stands_, true);
}

const std::string& Communication::refusal() {
  if (!begun_) begin();
  return refusal_;
}

/// All groups, or none and which one is missing.
std::string Communication::findGroups() {
  groups_.clear();
  if (found_.unnamed) {
    return describe(found_.unnamed) + ": its group is no constant of the program";
  }
  for (const std::string& name : found_.groups) {
    std::string why;
    auto group = ProcessGroup::find(name, device_.tensorDevice(), why);
    if (!group) {
      groups_.clear();
      return "group \"" + name + "\" is not ready: " + why;
    }
    groups_.push_back(std::move(group));
  }
  return "";
}

std::string Communication::localRefusal() const {
  if (options_.uncaptured) return "it was asked to run uncaptured";
  for (const auto& group : groups_) {
    if (device_.tensorDevice().is_cuda() && !isNccl(group->backend())) {
      return group->describe() + " cannot be captured on " + device_.name() +
             ": only NCCL's collectives run on the device alone";
    }
    if (ncclWouldRegister(group->backend(), environment)) {
      forbidNcclRegistration();
      remarks_.add(RemarkKind::Analysis, "runtime", "nccl-registration-off",
                   "NCCL_GRAPH_REGISTER was set to 0 for this process: NCCL would keep the pages "
                   "behind captured buffers, and those of the arena change");
    }
    std::string refused = refusedEnvironment(group->backend(), environment);
    if (!refused.empty()) return refused;
  }
  return "";
}

void Communication::begin() {
  refusal_ = findGroups();
  if (!refusal_.empty()) return;  // the step itself throws where c10d knows no such group
  begun_ = true;
  const std::string own = localRefusal();
  watchLaunches();
  const auto alone = [](const auto& group) { return group->ranks().size() == 1; };
  if (std::all_of(groups_.begin(), groups_.end(), alone)) {
    refusal_ = own;
    return;
  }
  try {
    agreement_ = std::make_unique<Agreement>(groups_);
  } catch (const c10::Error& error) {
    refusal_ = "the ranks cannot be compared: " + std::string(error.what_without_backtrace());
    return;
  }
  refusal_ = agreement_->compare(found_.lines, own);
}

void Communication::watchLaunches() {
  watch_ = std::make_unique<ReplayWatch>(device_);
  watchIndex_.clear();
  for (EntryCode& code : codes_) {
    for (const Launch& launch : code.launches) {
      if (launch.groups.empty()) continue;
      ReplayWatch::Partition watched;
      watched.name =
          "partition " + std::to_string(launch.index) + " of entry '" + code.entry->name + "'";
      for (int32_t group : launch.groups) watched.groups.push_back(groups_[group]);
      watchIndex_[&launch] = watch_->add(std::move(watched));
    }
  }
}

Decision Communication::vote(size_t entry, const Vote& vote) {
  Decision decision = agreement_->vote(vote);
  refusal_ = agreement_->apart();
  const bool served = decision.will == Will::Capture;
  capturing_ = served && decision.pending;
  if (served && !decision.pending && options_.agree == AgreeWhen::AtCapture) steady_[entry] = true;
  bool done = true;
  for (size_t e = 0; e < steady_.size(); ++e) done &= steady_[e] || !concerns_[e];
  if (done) agreement_.reset();  // a connection to the store for each program would be too many
  return decision;
}

std::string Communication::agreeOnCapture(const std::string& failure) {
  const Will will = failure.empty() ? Will::Capture : Will::Leave;
  std::string why = agreement_->vote({will, failure, false}).why;
  refusal_ = agreement_->apart();
  return why;
}

bool Communication::uses(const std::string& group) const {
  const auto& names = found_.groups;
  return std::find(names.begin(), names.end(), group) != names.end();
}

void Communication::letGo() {
  watch_.reset();
  agreement_.reset();
  groups_.clear();
  watchIndex_.clear();
  refusal_.clear();
  steady_.assign(steady_.size(), false);
  begun_ = false;
  stands_ = false;
}

}  // namespace gravure
