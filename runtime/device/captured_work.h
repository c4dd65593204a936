#pragma once
// What a capture recorded, as plain data that can be compared with another capture of the same calls.

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace gravure {

/// One piece of captured work: a kernel, a copy or a fill.
struct WorkNode {
  int32_t call = -1;                // which call of the capture made it, counted from 0
  const void* function = nullptr;   // what runs
  std::array<uint32_t, 7> shape{};  // grid, block, shared memory
  std::string name;                 // for messages
  /// All else that decides what it does; empty where `readable` is false.
  std::vector<uint8_t> bytes;
  bool readable = true;  // `bytes` are known
  bool writable = true;  // Executable::write() may give it others
};

/// In the order in which the calls recorded it.
using CapturedWork = std::vector<WorkNode>;

}  // namespace gravure
