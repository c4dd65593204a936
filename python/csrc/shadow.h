#pragma once
// Compares steps with the uncaptured path, on the same inputs and state: the option `shadow`.

#include "passes/pass.h"
#include "runtime/runtime.h"

#include <ATen/core/ivalue.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace gravure {

class Shadow {
 public:
  /// `program`: as it was given, before any pass. Every `each`-th run of an entry is compared.
  Shadow(Program program, std::string device, PassOptions options, bool poison, int64_t each);

  /// A run that is compared: what came of the uncaptured path.
  struct Run {
    std::string entry;
    int64_t number;                  // of the entry's runs, from 1
    std::vector<c10::IValue> given;  // the caller's; no saved values, which a replay may write over
    std::vector<c10::IValue> before;    // copies of what the run changes, as it was
    std::vector<c10::IValue> after;     // copies of all, which the uncaptured path has written
    std::vector<c10::IValue> expected;  // its results
    std::chrono::nanoseconds time{};    // of the thread that called it, copies apart
  };

  /// Before a run of an entry of `emitted`, which is what runs: runs it uncaptured on copies of `inputs`
  /// where its turn has come; nothing of the caller's is changed. nullopt where it is not compared; a
  /// remark says why where its turn had come.
  std::optional<Run> begin(const Program& emitted, const std::string& entry,
                           const std::vector<c10::IValue>& inputs, Remarks& remarks);
  /// Behind it: a remark says what differs, and where that begins.
  void compare(const Run& run, const std::vector<c10::IValue>& results, Remarks& remarks);

  int64_t compared() const { return compared_; }
  int64_t different() const { return different_; }

 private:
  std::string excuse(const Entry& entry) const;
  Runtime& reference(const Program& emitted);
  std::string originOf(const Run& run);
  void skip(const std::string& entry, const std::string& why, Remarks& remarks);

  Program program_;
  std::string device_;
  PassOptions options_;
  bool poison_;
  int64_t each_;
  std::unique_ptr<Runtime> reference_;
  std::map<std::string, int64_t> runs_;  // by entry
  std::set<std::string> said_;
  int64_t compared_ = 0, different_ = 0;
};

}  // namespace gravure
