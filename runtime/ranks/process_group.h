#pragma once
// The seam to c10d: one process group that a program names. No other header of ours includes c10d's.

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
  /// The group that c10d knows by `name`. nullptr where there is none, or where it has no backend for
  /// `device`; `why` says which.
  static std::shared_ptr<ProcessGroup> find(const std::string& name, c10::Device device,
                                            std::string& why);
  ~ProcessGroup();

  const std::string& name() const { return name_; }
  const std::string& backend() const { return backendName_; }     // "nccl", "gloo"
  const std::vector<int64_t>& ranks() const { return ranks_; }    // of the job, ascending
  int64_t rank() const { return rank_; }                          // this process, in the job
  std::chrono::milliseconds timeout() const { return timeout_; }  // of one collective
  /// A text of its name and ranks: the same on all its ranks, and on no other group's.
  std::string identity() const;
  /// `group "tp" (nccl, ranks 0, 1)`.
  std::string describe() const;

  /// False once c10d has destroyed the group that was found, or made another one of that name, and once its
  /// ranks share other memory (sharesOtherMemory).
  bool isCurrent() const;
  /// A new connection to the store that all groups of the job share. Throws c10::Error where the group
  /// has no store.
  c10::intrusive_ptr<c10d::Store> openStore() const;
  /// Aborts what the group's communicators are doing.
  void abort();

 private:
  ProcessGroup() = default;

  std::string name_, backendName_;
  std::vector<int64_t> ranks_;
  int64_t rank_ = 0;
  std::chrono::milliseconds timeout_{};
  c10::intrusive_ptr<c10d::ProcessGroup> group_;
  int64_t memory_ = 0;  // how often it had changed
};

/// From now on the ranks of the group `name` share other memory than before: a larger workspace of PyTorch's
/// symmetric memory. Captures have the address of the last one, so they are made anew, as for another group.
void sharesOtherMemory(const std::string& name);

/// True if the group of `name` has communicated on `device`, so that its communicator exists. For the host
/// device: like NCCL, it refuses a capture whose collective would be the group's first.
bool hasCommunicated(const std::string& name, c10::Device device);

}  // namespace gravure
