#pragma once
// The seam to c10d: one process group that a program names. Nothing else here includes c10d.

#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace c10d {
class Backend;
class ProcessGroup;
class Store;
}  // namespace c10d

namespace gravure {

class ProcessGroup {
 public:
  /// nullptr, and `why`, where c10d has no group of that name, or it has no backend for `device`.
  static std::shared_ptr<ProcessGroup> find(const std::string& name, c10::Device device,
                                            std::string& why);
  ~ProcessGroup();

  const std::string& name() const { return name_; }
  const std::string& backend() const { return backendName_; }     // "nccl", "gloo"
  const std::vector<int64_t>& ranks() const { return ranks_; }    // of the job, ascending
  int64_t rank() const { return rank_; }                          // this process, in the job
  std::chrono::milliseconds timeout() const { return timeout_; }  // of one collective
  /// The same on all its ranks, another one for any other group: name and ranks.
  std::string identity() const;
  /// `group "tp" (nccl, ranks 0, 1)`.
  std::string describe() const;

  /// True while c10d knows the very group that was found: not destroyed, nor made anew.
  bool isCurrent() const;
  /// A connection of its own to the store that all groups of the job share. Throws c10::Error where
  /// the group has none.
  c10::intrusive_ptr<c10d::Store> openStore() const;
  /// Ends what the group's communicators do, finished or not.
  void abort();

 private:
  ProcessGroup() = default;

  std::string name_, backendName_;
  std::vector<int64_t> ranks_;
  int64_t rank_ = 0;
  std::chrono::milliseconds timeout_{};
  c10::intrusive_ptr<c10d::ProcessGroup> group_;
};

/// True if the group of `name` has communicated on `device` before, so that its communicator is there:
/// for the host device, which refuses a first collective in a capture as NCCL does.
bool hasCommunicated(const std::string& name, c10::Device device);

}  // namespace gravure
