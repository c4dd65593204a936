#include "runtime/ranks/replay_watch.h"

#include "runtime/device/device.h"

#include <c10/util/thread_name.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>

namespace gravure {
namespace {

using Clock = std::chrono::steady_clock;

/// A replay that may be running.
struct Launched {
  std::unique_ptr<Marker> end;
  std::optional<Clock::time_point> since;  // none: it is known to have ended
};

/// The oldest replay that is not known to have ended, and the newest: two markers watch any number.
struct Watched {
  ReplayWatch::Partition partition;
  std::chrono::milliseconds timeout{};
  Launched oldest, newest;
};

bool ended(Marker& marker) {
  try {
    return marker.reached();
  } catch (const c10::Error&) {
    return true;  // the device failed, which its next call reports
  }
}

}  // namespace

struct ReplayWatch::State {
  std::mutex mutex;
  std::condition_variable woken, looked;
  std::vector<Watched> all;
  std::thread thread;
  bool stopped = false, aborting = false, asked = false;
  std::string failure;

  void run();
  Watched* late(Clock::time_point now);
  void abort(std::unique_lock<std::mutex>& lock, const Watched& watched);
};

ReplayWatch::ReplayWatch(Device& device) : state_(std::make_shared<State>()), device_(device) {}

ReplayWatch::~ReplayWatch() {
  std::unique_lock lock(state_->mutex);
  state_->stopped = true;
  state_->woken.notify_all();
  if (!state_->thread.joinable()) return;
  // NCCL's abort may wait for graphs that die only after this.
  const bool leave = state_->aborting;
  std::thread thread = std::move(state_->thread);
  lock.unlock();
  if (leave) {
    thread.detach();
  } else {
    thread.join();
  }
}

size_t ReplayWatch::add(Partition partition) {
  Watched watched;
  watched.timeout = std::chrono::milliseconds::max();
  for (const auto& group : partition.groups)
    watched.timeout = std::min(watched.timeout, group->timeout());
  watched.partition = std::move(partition);
  watched.oldest.end = device_.makeMarker();
  watched.newest.end = device_.makeMarker();
  state_->all.push_back(std::move(watched));
  return state_->all.size() - 1;
}

void ReplayWatch::launched(size_t index) {
  const std::lock_guard lock(state_->mutex);
  Watched& watched = state_->all[index];
  Launched& slot = watched.oldest.since ? watched.newest : watched.oldest;
  slot.end->record();
  slot.since = Clock::now();
  if (!state_->thread.joinable() && !state_->aborting) {
    state_->thread = std::thread([state = state_] { state->run(); });
  }
}

void ReplayWatch::check() const {
  const std::lock_guard lock(state_->mutex);
  TORCH_CHECK(state_->failure.empty(), state_->failure);
}

void ReplayWatch::checkNow() {
  std::unique_lock lock(state_->mutex);
  if (state_->thread.joinable() && state_->failure.empty()) {
    state_->asked = true;
    state_->woken.notify_all();
    state_->looked.wait(lock, [this] { return !state_->asked || !state_->failure.empty(); });
  }
  TORCH_CHECK(state_->failure.empty(), state_->failure);
}

void ReplayWatch::State::run() {
  c10::setThreadName("gravure_watch");
  auto shortest = std::chrono::milliseconds::max();
  std::unique_lock lock(mutex);
  for (const Watched& watched : all) shortest = std::min(shortest, watched.timeout);
  using namespace std::chrono_literals;
  const auto pause = std::clamp<std::chrono::milliseconds>(shortest / 8, 10ms, 1000ms);
  while (!stopped) {
    woken.wait_for(lock, pause, [this] { return stopped || asked; });
    if (stopped) break;
    if (const Watched* watched = late(Clock::now())) {
      abort(lock, *watched);
      break;
    }
    asked = false;
    looked.notify_all();
  }
}

/// Moves on from the replays that have ended. The partition whose oldest one is late, nullptr if none is.
Watched* ReplayWatch::State::late(Clock::time_point now) {
  for (Watched& watched : all) {
    if (!watched.oldest.since) continue;
    if (ended(*watched.oldest.end)) {
      watched.oldest.since.reset();
      std::swap(watched.oldest, watched.newest);
    } else if (now - *watched.oldest.since > watched.timeout) {
      return &watched;
    }
  }
  return nullptr;
}

void ReplayWatch::State::abort(std::unique_lock<std::mutex>& lock, const Watched& watched) {
  std::string groups;
  for (const auto& group : watched.partition.groups)
    groups += (groups.empty() ? "" : ", ") + group->describe();
  failure =
      "the replay of " + watched.partition.name + " did not end within " +
      std::to_string(watched.timeout.count()) + " ms, the timeout of its groups: " + groups +
      ". A rank died, or did not come to this step. The groups were aborted; end this process, "
      "or make the groups anew";
  aborting = true;
  looked.notify_all();
  const auto aborted = watched.partition.groups;
  lock.unlock();
  TORCH_WARN(failure);
  for (const auto& group : aborted) {
    try {
      group->abort();
    } catch (const std::exception& error) {
      TORCH_WARN("aborting ", group->describe(), " failed: ", error.what());
    }
  }
  lock.lock();
  aborting = false;
}

}  // namespace gravure
