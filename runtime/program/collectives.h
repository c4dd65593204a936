#pragma once
// What a program communicates: its groups, and its collectives in the order in which they start.

#include "runtime/program/instruction.h"

#include <llvm/ADT/SmallVector.h>

#include <string>
#include <vector>

namespace gravure {

/// The names of the process groups that a collective names, one but for compiled code, which may have
/// several; "" for one that is no constant of the program.
llvm::SmallVector<std::string, 1> groupNamesOf(const Node* node);

struct ProgramCollectives {
  std::vector<std::string> groups;  // names, in the order of first use
  /// What ranks compare, one line a collective: its entry, where it runs (which of the entry's
  /// partitions with collectives, or the host), operator, shapes and dtypes, constants, and its group
  /// by position in `groups`. Nothing that may differ from rank to rank: devices, splits, offsets.
  std::vector<std::string> lines;
  bool captured = false;          // some partition holds a collective
  const Node* unnamed = nullptr;  // in a partition, and its group is no constant
};

/// Also fills Launch::groups.
ProgramCollectives findCollectives(std::vector<EntryCode>& codes);

}  // namespace gravure
