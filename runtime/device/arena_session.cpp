#include "runtime/device/arena_session.h"

#include "runtime/device/device.h"

#include <c10/util/Exception.h>

#include <llvm/ADT/STLExtras.h>

#include <atomic>

namespace gravure {
namespace {
thread_local ArenaSession* innermost = nullptr;
}

ArenaSession::ArenaSession(size_t calls, c10::Device device)
    : outer_(innermost), device_(device), record_(calls) {
  TORCH_INTERNAL_ASSERT(device.is_cpu() || device.has_index(), "a session for any one of the GPUs");
  innermost = this;
}

ArenaSession::ArenaSession(const ServePlan& plan, std::shared_ptr<Slab> slab, c10::Device device,
                           const OperandPlan* operands)
    : outer_(innermost), device_(device), plan_(&plan), operands_(operands),
      slab_(std::move(slab)) {
  TORCH_INTERNAL_ASSERT(device.is_cpu() || device.has_index(), "a session for any one of the GPUs");
  innermost = this;
}

ArenaSession::~ArenaSession() { innermost = outer_; }

ArenaSession* ArenaSession::current() { return innermost; }

ArenaSession* ArenaSession::of(c10::Device device) {
  ArenaSession* session = innermost;
  while (session != nullptr && session->device_ != device) session = session->outer_;
  return session;
}

void ArenaSession::freed(void* address) {
  ArenaSession* session = innermost;
  while (session != nullptr && !session->noteFree(address)) session = session->outer_;
}

void ArenaSession::enterCall(int64_t position) {
  position_ = position;
  cursor_ = 0;
  served_.clear();
  watch_ = 0;
  letGo_.clear();
  if (position < 0 || operands_ == nullptr) return;
  for (const Extent& each : (*operands_)[position])
    served_.push_back({each.begin, each.end - each.begin});
}

uint64_t ArenaSession::watch() {
  static std::atomic<uint64_t> last{0};
  const bool asks =
      position_ >= 0 && (recording() || (operands_ && !(*operands_)[position_].empty()));
  if (asks && watch_ == 0) watch_ = ++last;
  return watch_;
}

void ArenaSession::letGo(uint64_t watch, const void* address) {
  ArenaSession* session = innermost;
  while (session != nullptr && session->watch_ != watch) session = session->outer_;
  if (session == nullptr) return;
  if (session->recording()) {
    session->letGo_[address] = static_cast<int64_t>(session->record_[session->position_].size());
    return;
  }
  const int64_t at = static_cast<const char*>(address) - session->slab_->base();
  llvm::erase_if(session->served_, [&](const Served& each) {
    return each.offset <= at && at < each.offset + each.bytes;
  });
}

int64_t ArenaSession::letGoBefore(const void* address) const {
  const auto at = letGo_.find(address);
  return at == letGo_.end() ? -1 : at->second;
}

void* ArenaSession::serve(size_t bytes) {
  if (position_ < 0) return nullptr;
  const auto& row = (*plan_)[position_];
  if (row.empty()) return nullptr;  // this call's allocations are not planned
  const bool match = cursor_ < row.size() && row[cursor_].bytes == static_cast<int64_t>(bytes) &&
                     isFree(row[cursor_]);
  if (!match && row.front().loose) return nullptr;
  if (!match) {
    if (mismatches_.empty() || mismatches_.back() != position_) mismatches_.push_back(position_);
    return nullptr;
  }
  const PlannedAllocation& planned = row[cursor_++];
  if (planned.shared && planned.offset >= 0) served_.push_back({planned.offset, planned.bytes});
  return planned.offset < 0 ? nullptr : slab_->base() + planned.offset;
}

/// False while another allocation of the call lies there: it is given back later than in the recorded run.
bool ArenaSession::isFree(const PlannedAllocation& planned) const {
  return !planned.shared || planned.offset < 0 || llvm::none_of(served_, [&](const Served& other) {
    return other.offset < planned.offset + planned.bytes &&
           planned.offset < other.offset + other.bytes;
  });
}

void ArenaSession::noteAllocation(void* address, size_t bytes) {
  if (!recording() || position_ < 0) return;
  auto& row = record_[position_];
  live_[address] = {position_, row.size()};
  row.push_back({static_cast<int64_t>(bytes), -1, address, -1});
}

bool ArenaSession::noteFree(void* address) {
  if (!recording()) {
    const auto at = llvm::find_if(
        served_, [&](const Served& each) { return slab_->base() + each.offset == address; });
    if (at == served_.end()) return false;
    served_.erase(at);
    return true;
  }
  auto at = live_.find(address);
  if (at == live_.end()) return false;
  const auto [position, ordinal] = at->second;
  RecordedAllocation& allocation = record_[position][ordinal];
  allocation.freedAt = position_;
  if (position == position_)
    allocation.freedBefore = static_cast<int64_t>(record_[position].size());
  live_.erase(at);
  return true;
}

int32_t ArenaSession::ordinalOf(const void* address) const {
  auto at = live_.find(address);
  if (at == live_.end() || at->second.first != position_) return -1;
  return static_cast<int32_t>(at->second.second);
}

}  // namespace gravure
