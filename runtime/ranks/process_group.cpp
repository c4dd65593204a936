#include "runtime/ranks/process_group.h"

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <algorithm>
#include <map>
#include <mutex>
#include <numeric>

namespace gravure {
namespace {

/// Null where there is none.
c10::intrusive_ptr<c10d::ProcessGroup> resolve(const std::string& name, std::string& why) {
  try {
    return c10d::resolve_process_group(name);
  } catch (const c10::Error& error) {
    why = error.what_without_backtrace();
    return nullptr;
  }
}

c10::intrusive_ptr<c10d::Backend> backendFor(c10d::ProcessGroup& group, c10::Device device,
                                             std::string& why) {
  try {
    return group.getBackend(device.type());
  } catch (const c10::Error& error) {
    why = error.what_without_backtrace();
    return nullptr;
  }
}

c10::intrusive_ptr<c10d::Backend::Options> optionsOf(c10d::Backend& backend) {
  try {
    return backend.getBackendOptions();
  } catch (const c10::Error&) {  // few backends have options
    return nullptr;
  }
}

std::string listed(const std::vector<int64_t>& ranks) {
  std::string text;
  for (int64_t rank : ranks) text += (text.empty() ? "" : ", ") + std::to_string(rank);
  return text;
}

/// How often the memory that ranks share has changed, by the name of their group.
class MemoryChanges {
 public:
  static MemoryChanges& all() {
    static auto& changes = *new MemoryChanges();
    return changes;
  }
  void add(const std::string& group) {
    const std::lock_guard lock(mutex_);
    ++counts_[group];
  }
  int64_t count(const std::string& group) const {
    const std::lock_guard lock(mutex_);
    const auto at = counts_.find(group);
    return at == counts_.end() ? 0 : at->second;
  }

 private:
  mutable std::mutex mutex_;
  std::map<std::string, int64_t> counts_;
};

}  // namespace

ProcessGroup::~ProcessGroup() = default;

std::shared_ptr<ProcessGroup> ProcessGroup::find(const std::string& name, c10::Device device,
                                                 std::string& why) {
  const auto group = resolve(name, why);
  const auto backend = group ? backendFor(*group, device, why) : nullptr;
  if (!backend) return nullptr;
  std::shared_ptr<ProcessGroup> found(new ProcessGroup);
  found->name_ = name;
  found->backendName_ = backend->getBackendName();
  found->group_ = group;
  found->memory_ = MemoryChanges::all().count(name);
  found->timeout_ = kBackendDefaultTimeout;
  if (const auto options = optionsOf(*backend)) {
    found->timeout_ = options->timeout;
    for (uint64_t rank : options->global_ranks_in_group)
      found->ranks_.push_back(static_cast<int64_t>(rank));
  }
  if (found->ranks_.size() != static_cast<size_t>(group->getSize())) {  // the default group
    found->ranks_.resize(group->getSize());
    std::iota(found->ranks_.begin(), found->ranks_.end(), 0);
  }
  found->rank_ = found->ranks_[group->getRank()];
  std::sort(found->ranks_.begin(), found->ranks_.end());
  return found;
}

std::string ProcessGroup::identity() const { return name_ + " of ranks " + listed(ranks_); }

std::string ProcessGroup::describe() const {
  return "group \"" + name_ + "\" (" + backendName_ + ", ranks " + listed(ranks_) + ")";
}

bool ProcessGroup::isCurrent() const {
  std::string why;
  return resolve(name_, why) == group_ && MemoryChanges::all().count(name_) == memory_;
}

void sharesOtherMemory(const std::string& name) { MemoryChanges::all().add(name); }

c10::intrusive_ptr<c10d::Store> ProcessGroup::openStore() const {
  c10::intrusive_ptr<c10d::Store> store = group_->getStore();
  TORCH_CHECK(store, describe(), " has no store");
  if (auto prefixed = c10::dynamic_intrusive_pointer_cast<c10d::PrefixStore>(store)) {
    store = prefixed->getUnderlyingNonPrefixStore();
  }
  return store->clone();
}

void ProcessGroup::abort() { group_->abort(); }

bool hasCommunicated(const std::string& name, c10::Device device) {
  std::string why;
  const auto group = resolve(name, why);
  const auto backend = group ? backendFor(*group, device, why) : nullptr;
  return backend && backend->getSequenceNumberForGroup() > 0;
}

}  // namespace gravure
