#include "runtime/ranks/agreement.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include <c10/util/hash.h>
#include <llvm/ADT/SmallVector.h>
#include <llvm/ADT/StringRef.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <mutex>

namespace gravure {
namespace {

// A vote adds to one counter: 20 bits each for ranks that came, said no, have captures to make.
constexpr int64_t kNo = int64_t{1} << 20, kPending = int64_t{1} << 40;
constexpr int64_t kCount = kNo - 1;

/// First in what a rank writes of itself, and in the outcome.
char letterOf(Will will) { return static_cast<char>('0' + static_cast<int>(will)); }
Will willOf(char letter) { return static_cast<Will>(letter - '0'); }

/// Before all keys. torchrun keeps its store when it starts a job's processes anew.
std::string keysOf(const char* what) {
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return value ? std::string(value) : "";
  };
  return "gravure/" + variable("TORCHELASTIC_RUN_ID") + "/" +
         variable("TORCHELASTIC_RESTART_COUNT") + "/" + what + "/";
}

/// Set by the first rank of a group for whom another one did not come.
std::string apartKey(const ProcessGroup& group) {
  return keysOf("apart") + c10::sha1(group.identity()).str();
}

std::string postKey(const std::string& program, int64_t rank) {
  return keysOf("post") + program + "/" + std::to_string(rank);
}

std::string oneLine(std::string text) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

/// Programs of one rank that use a group are told apart by their order, which is the same on all of its
/// ranks.
int64_t nextProgramOf(const std::string& identity) {
  static std::mutex mutex;
  static std::map<std::string, int64_t> programs;
  const std::lock_guard lock(mutex);
  return programs[identity]++;
}

std::vector<std::string> linesOf(const std::string& text) {
  llvm::SmallVector<llvm::StringRef, 16> parts;
  llvm::StringRef(text).split(parts, '\n');
  return {parts.begin(), parts.end()};
}

/// Of the first line in which they differ.
std::string firstDifference(const std::vector<std::string>& mine,
                            const std::vector<std::string>& reference) {
  size_t i = 0;
  while (i < mine.size() && i < reference.size() && mine[i] == reference[i]) ++i;
  const auto at = [i](const std::vector<std::string>& lines) {
    return i < lines.size() ? "'" + lines[i] + "'" : std::string("nothing");
  };
  return "collective " + std::to_string(i) + " is " + at(mine) + " there, and " + at(reference);
}

}  // namespace

std::string Agreement::textOf(const Post& post) {
  std::string text = post.digest + "\n" + oneLine(post.refusal);
  for (const auto& [key, ranks] : post.groups) text += "\n" + key + ":" + c10::Join(",", ranks);
  return text;
}

Agreement::Post Agreement::postOf(const std::string& text) {
  Post post;
  const auto lines = linesOf(text);
  TORCH_INTERNAL_ASSERT(lines.size() >= 2, "a rank posted: ", text);
  post.digest = lines[0];
  post.refusal = lines[1];
  for (size_t i = 2; i < lines.size(); ++i) {
    const auto [key, list] = llvm::StringRef(lines[i]).split(':');
    llvm::SmallVector<llvm::StringRef, 8> parts;
    list.split(parts, ',');
    std::vector<int64_t> ranks;
    for (llvm::StringRef part : parts) {
      int64_t rank = 0;
      if (!part.getAsInteger(10, rank)) ranks.push_back(rank);
    }
    post.groups.emplace_back(key.str(), std::move(ranks));
  }
  return post;
}

Agreement::Agreement(std::vector<std::shared_ptr<ProcessGroup>> groups)
    : groups_(std::move(groups)) {
  TORCH_INTERNAL_ASSERT(!groups_.empty(), "an agreement without groups");
  store_ = groups_.front()->openStore();
  rank_ = groups_.front()->rank();
  // Who waits keeps others waiting in their collectives, which must not time out.
  using namespace std::chrono_literals;
  patience_ = 5min;
  for (const auto& group : groups_) patience_ = std::min(patience_, group->timeout() / 2);
}

Agreement::~Agreement() = default;

/// Waits until some rank has set `key`. False, and apart(), if it does not come.
template <typename Missing>
bool Agreement::await(const std::string& key, Missing missing) {
  using namespace std::chrono_literals;
  const auto end = std::chrono::steady_clock::now() + patience_;
  while (apart_.empty()) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        end - std::chrono::steady_clock::now());
    if (left <= 0ms) {
      goApart(missing());
      break;
    }
    try {
      store_->wait({key}, std::min<std::chrono::milliseconds>(left, 1s));
      return true;
    } catch (const c10::Error&) {  // not yet
      for (const auto& group : groups_) {
        if (store_->check({apartKey(*group)})) apart_ = store_->get_to_str(apartKey(*group));
      }
    }
  }
  return false;
}

void Agreement::goApart(const std::string& missing) {
  apart_ = missing + " did not come to a common step within " + std::to_string(patience_.count()) +
           " ms: it died, or runs a program of its own, for other sizes";
  for (const auto& group : groups_) store_->set(apartKey(*group), apart_);
}

/// From rank to rank, by the groups that they name. False if one does not come.
bool Agreement::findRanks(const Post& own) {
  posts_.emplace(rank_, own);
  std::deque<std::pair<std::string, std::vector<int64_t>>> open(own.groups.begin(),
                                                                own.groups.end());
  base_ = open.front().first;
  while (!open.empty()) {
    const auto [key, ranks] = std::move(open.front());
    open.pop_front();
    base_ = std::min(base_, key);
    for (const int64_t rank : ranks) {
      if (posts_.count(rank)) continue;
      const std::string keyOfPost = postKey(key, rank);
      if (!await(keyOfPost, [rank] { return "rank " + std::to_string(rank); })) return false;
      Post post = postOf(store_->get_to_str(keyOfPost));
      open.insert(open.end(), post.groups.begin(), post.groups.end());
      posts_.emplace(rank, std::move(post));
    }
  }
  base_ = keysOf("vote") + base_ + "/";
  return true;
}

std::string Agreement::compare(const std::vector<std::string>& lines, const std::string& refusal) {
  for (const auto& group : groups_) {
    if (!store_->check({apartKey(*group)})) continue;
    return apart_ = store_->get_to_str(apartKey(*group));
  }
  Post own;
  own.digest = c10::sha1(c10::Join("\n", lines)).str();
  own.refusal = refusal;
  for (const auto& group : groups_) {
    const std::string key =
        c10::sha1(group->identity()).str() + "#" + std::to_string(nextProgramOf(group->identity()));
    own.groups.emplace_back(key, group->ranks());
  }
  for (const auto& [key, ranks] : own.groups) store_->set(postKey(key, rank_), textOf(own));
  if (!findRanks(own)) return apart_;
  for (const auto& [rank, post] : posts_) {
    if (!post.refusal.empty()) return "rank " + std::to_string(rank) + ": " + post.refusal;
  }
  return differences(lines);
}

/// The program that most ranks have is the one that the others differ from.
std::string Agreement::differences(const std::vector<std::string>& lines) {
  std::map<std::string, int64_t> holders;
  for (const auto& [rank, post] : posts_) ++holders[post.digest];
  if (holders.size() == 1) return "";
  int64_t reference = posts_.begin()->first;
  for (const auto& [rank, post] : posts_) {
    if (holders[post.digest] > holders[posts_.at(reference).digest]) reference = rank;
  }
  const auto differs = [&](const auto& at) {
    return at.second.digest != posts_.at(reference).digest;
  };
  const int64_t other = std::find_if(posts_.begin(), posts_.end(), differs)->first;
  store_->set(base_ + "lines/" + std::to_string(rank_), c10::Join("\n", lines));
  std::vector<std::string> of[2];
  for (const int64_t rank : {other, reference}) {
    const std::string key = base_ + "lines/" + std::to_string(rank);
    if (!await(key, [rank] { return "rank " + std::to_string(rank); })) return apart_;
    of[rank == reference] = linesOf(store_->get_to_str(key));
  }
  return "rank " + std::to_string(other) +
         " has another program: " + firstDifference(of[0], of[1]) + " on rank " +
         std::to_string(reference);
}

Decision Agreement::vote(const Vote& vote) {
  const std::string self = std::to_string(rank_);
  if (posts_.size() == 1) {
    const std::string why = vote.why.empty() ? "" : "rank " + self + ": " + vote.why;
    return {vote.will, why, vote.pending};
  }
  const std::string round = base_ + std::to_string(round_++) + "/";
  store_->set(base_ + "at/" + self, std::to_string(round_));
  const bool no = vote.will != Will::Capture;
  if (no) store_->set(round + "no/" + self, letterOf(vote.will) + oneLine(vote.why));
  const int64_t all =
      store_->add(round + "votes", 1 + (no ? kNo : 0) + (vote.pending ? kPending : 0));
  std::string text;
  if ((all & kCount) == static_cast<int64_t>(posts_.size())) {
    text = outcome(round, all / kPending > 0, (all / kNo & kCount) > 0);
    store_->set(round + "outcome", text);
    forget(round_ - 2);
  } else {
    const bool came = await(round + "outcome", [this] { return missingRanks(); });
    if (!came) return {Will::Leave, apart_, false};
    text = store_->get_to_str(round + "outcome");
  }
  return {willOf(text[1]), text.substr(2), text[0] == '1'};
}

/// Whoever has come to a round has read the outcome of the one before.
void Agreement::forget(int64_t round) {
  if (round < 0) return;
  const std::string keys = base_ + std::to_string(round) + "/";
  store_->deleteKey(keys + "votes");
  store_->deleteKey(keys + "outcome");
}

/// "1" if captures are to be made, the letter of what all will do, and what the ranks said.
std::string Agreement::outcome(const std::string& round, bool pending, bool anyNo) {
  std::map<int64_t, std::string> said;
  Will will = Will::Capture;
  for (const auto& [rank, post] : posts_) {
    const std::string key = round + "no/" + std::to_string(rank);
    if (!anyNo || !store_->check({key})) continue;
    said[rank] = store_->get_to_str(key);
    store_->deleteKey(key);
    will = std::max(will, willOf(said[rank][0]));
  }
  std::string text = std::string(pending ? "1" : "0") + letterOf(will);
  const char* separator = "rank ";
  for (const auto& [rank, answer] : said) {
    if (willOf(answer[0]) != will) continue;
    text += separator + std::to_string(rank) + ": " + answer.substr(1);
    separator = "; rank ";
  }
  return text;
}

/// Those that are not at this round yet.
std::string Agreement::missingRanks() {
  std::string missing;
  for (const auto& [rank, post] : posts_) {
    const std::string key = base_ + "at/" + std::to_string(rank);
    int64_t at = 0;
    if (store_->check({key})) (void)llvm::StringRef(store_->get_to_str(key)).getAsInteger(10, at);
    if (at < round_) missing += (missing.empty() ? "rank " : ", rank ") + std::to_string(rank);
  }
  return missing.empty() ? "the store's answer" : missing;
}

}  // namespace gravure
