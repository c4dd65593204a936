#pragma once
// Which inputs of an entry share memory, where the entry writes into it.
//
// A program knows each input as a storage of its own (ir/memory/storage_accesses.h). Where two share a byte
// that it writes, no order of its calls is the caller's. What counts is memory, not who holds it: two
// storages may begin at one address, and views of one storage may have no byte in common.

#include "runtime/program/guards.h"

#include <ATen/core/ivalue.h>

#include <llvm/ADT/ArrayRef.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace gravure {

struct SharedInputs {
  size_t written = 0, other = 0;
};

/// Two of `values` that share a byte, of which the first is among `written`, ascending; nothing where no such
/// two do. A stand-in without values shares with whom it has the storage with, and in full where its sizes
/// are open.
/// Complexity: n log n, and linear in pairs whose bytes are between each other's.
std::optional<SharedInputs> findShared(llvm::ArrayRef<c10::IValue> values,
                                       llvm::ArrayRef<size_t> written);

/// Inputs that may lie elsewhere in each step that a seal holds for, beside those that do not. Only they can
/// come to share memory.
class LooseInputs {
 public:
  /// `written`: ascending.
  explicit LooseInputs(llvm::ArrayRef<size_t> written = {}) : written_(written) {}

  /// The input at `index` has this address and layout.
  void addFixed(size_t index, const OperandGuard::Layout& layout);
  void addLoose(size_t index);
  /// Behind the last one.
  void close();

  /// False where one of them may share memory of which one is written: findShared() knows.
  /// Complexity: linear where none lies elsewhere than in the last call; else n log n.
  bool areApart(const std::vector<c10::IValue>& values) const {
    return loose_.empty() || looksApart(values);
  }

 private:
  struct Span {
    uintptr_t begin = 0, end = 0;
    bool operator==(const Span&) const = default;
  };
  struct Loose {
    size_t index = 0;
    bool written = false;
    Span last;  // apart from all others
  };
  bool looksApart(const std::vector<c10::IValue>& values) const;
  /// Of loose ones, each with the rest.
  bool anyMeet() const;
  static bool meets(const std::vector<Span>& spans, const Span& span);

  llvm::ArrayRef<size_t> written_;
  std::vector<Span> fixed_, fixedWritten_;  // by where they begin, those that meet as one
  bool anyWritten_ = false;                 // of the loose ones
  mutable std::vector<Loose> loose_;        // areApart() notes where they lie
};

}  // namespace gravure
