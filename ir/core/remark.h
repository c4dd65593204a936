#pragma once
// Remarks: one structured record for each thing done, missed or found.

#include "ir/core/reason.h"

#include <deque>
#include <optional>
#include <string>

namespace llvm {
class raw_ostream;
}
namespace torch::jit {
struct Node;
}

namespace gravure {

enum class RemarkKind : uint8_t { Passed, Missed, Analysis };

/// One record. `name` is stable and kebab-case: tools may match on it (docs/remarks.md lists all).
struct Remark {
  RemarkKind kind = RemarkKind::Analysis;
  std::string pass;     // stem of the pass, or "runtime"
  std::string name;     // "host-sync", "partition-formed", …
  std::string node;     // describe(node), "" if about the whole entry
  std::string source;   // "model.py:88"
  std::string module;   // "blocks.3.moe"
  std::string message;  // one sentence, without the facts above

  /// `missed [host-sync] %item = aten::_local_scalar_dense at model.py:88 in blocks.3.moe: …`
  void print(llvm::raw_ostream& os) const;
};

const char* kindName(RemarkKind kind);  // "passed", "missed", "analysis"

/// Collects remarks in the order they were made.
class Remarks {
 public:
  Remark& add(RemarkKind kind, std::string pass, std::string name, std::string message);
  /// The same, about `node`: fills node, source and module.
  Remark& add(RemarkKind kind, std::string pass, std::string name, const torch::jit::Node* node,
              std::string message);
  const std::deque<Remark>& all() const { return remarks_; }
  size_t count(std::string_view name) const;
  void clear() { remarks_.clear(); }

  void printText(llvm::raw_ostream& os) const;
  /// One JSON array of objects with the fields of Remark.
  void printJson(llvm::raw_ostream& os) const;

 private:
  std::deque<Remark> remarks_;  // grows without moving what is there
};

}  // namespace gravure
