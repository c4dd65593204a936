#include "python/csrc/process/user_log.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <llvm/ADT/StringSwitch.h>
#include <llvm/Support/raw_ostream.h>

namespace gravure {

namespace {

std::string lineOf(const Remark& remark) {
  std::string line;
  llvm::raw_string_ostream os(line);
  remark.print(os);
  while (!line.empty() && line.back() == '\n') line.pop_back();
  return line;
}

/// What costs a capture for good, or bits; all else costs one step, or was decided when the program was
/// cut.
bool lasts(const std::string& name) {
  return llvm::StringSwitch<bool>(name)
      .Cases("capture-failed", "launch-failed", "no-arena", "often-uncaptured", true)
      .Cases("shadow-differs", "shadow-skipped", true)
      .Default(false);
}

}  // namespace

void logToUser(LogLevel level, const std::vector<std::string>& messages) {
  const auto op = c10::Dispatcher::singleton().findSchema({"gravure::log", ""});
  if (!op || messages.empty()) return;
  c10::List<std::string> lines(messages);
  torch::jit::Stack stack{static_cast<int64_t>(level), lines};
  op->callBoxed(stack);
}

void logMissed(const Remarks& remarks, size_t first) {
  std::vector<std::string> infos, warnings;
  for (size_t i = first; i < remarks.all().size(); ++i) {
    const Remark& remark = remarks.all()[i];
    if (remark.kind != RemarkKind::Missed) continue;
    (lasts(remark.name) ? warnings : infos).push_back(lineOf(remark));
  }
  logToUser(LogLevel::Info, infos);
  logToUser(LogLevel::Warning, warnings);
}

void CaptureProgress::show(const std::string& entry, int64_t done, int64_t total) {
  constexpr std::chrono::seconds kPatience{2}, kPause{3};
  const auto now = Clock::now();
  if (done <= last_ || last_ < 0) begun_ = said_ = now;
  last_ = done;
  if (now - begun_ < kPatience) return;
  tell("capturing " + entry, done, total);
  if (said_ != begun_ && now - said_ < kPause) return;
  said_ = now;
  logToUser(LogLevel::Info, {"capturing partition " + std::to_string(done + 1) + " of " +
                             std::to_string(total) + " of entry " + entry});
}

void CaptureProgress::tell(const std::string& what, int64_t done, int64_t total) {
  shown_ = !what.empty();
  const auto op = c10::Dispatcher::singleton().findSchema({"gravure::progress", ""});
  if (!op) return;
  torch::jit::Stack stack{what, done, total};
  op->callBoxed(stack);
}

}  // namespace gravure
