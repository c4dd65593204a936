#pragma once
// What the ranks of a program tell each other, through the store that their groups share.
//
// Ranks of one program: those of its groups, those of their programs' groups, and so on: whoever waits
// for one waits for all. Each exchange is one that all of them make, in the same order. Where a rank
// does not come, it died, or it runs another program now (for other sizes): the ranks are apart then,
// for these groups and for good, and the others go on without a word.

#include "runtime/ranks/process_group.h"

#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace gravure {

/// How a rank would run a step. Of all ranks' answers the last of these counts.
enum class Will : uint8_t {
  Capture,  // replay, or capture first
  Wait,     // not yet: it still warms up
  Leave,    // not this time
  Throw,    // not at all: its step throws
};

/// What one rank has to say before all do the same.
struct Vote {
  Will will = Will::Capture;
  std::string why;       // one line; "" with Capture
  bool pending = false;  // it has partitions with collectives to capture
};

struct Decision {
  Will will = Will::Capture;
  std::string why;       // "rank 1: …", of each rank that says so
  bool pending = false;  // some rank's is
};

class Agreement {
 public:
  /// `groups` are those of this rank's program. Throws c10::Error where they have no store.
  explicit Agreement(std::vector<std::shared_ptr<ProcessGroup>> groups);
  ~Agreement();

  /// Finds the ranks of the program and compares. `lines`: what must be the same on all of them;
  /// `refusal`: why this rank's environment lets nothing be captured, or "".
  /// "" if all is well, else what differs, or who refuses (the same words on each rank), or apart().
  std::string compare(const std::vector<std::string>& lines, const std::string& refusal);
  /// After compare(). Leave and apart() where a rank did not come.
  Decision vote(const Vote& vote);

  /// "" while all ranks come; else who did not, and within what time.
  const std::string& apart() const { return apart_; }

 private:
  /// What a rank tells of its program at first.
  struct Post {
    std::string digest, refusal;
    std::vector<std::pair<std::string, std::vector<int64_t>>> groups;  // key, ranks
  };
  static std::string textOf(const Post& post);
  static Post postOf(const std::string& text);

  template <typename Missing>
  bool await(const std::string& key, Missing missing);
  void goApart(const std::string& missing);
  bool findRanks(const Post& own);
  std::string differences(const std::vector<std::string>& lines);
  void forget(int64_t round);
  std::string missingRanks();
  std::string outcome(const std::string& round, bool pending, bool anyNo);

  const std::vector<std::shared_ptr<ProcessGroup>> groups_;
  c10::intrusive_ptr<c10d::Store> store_;
  std::chrono::milliseconds patience_{};
  std::string apart_;
  int64_t rank_ = 0;
  std::map<int64_t, Post> posts_;  // by rank
  std::string base_;               // of this program's keys
  int64_t round_ = 0;
};

}  // namespace gravure
