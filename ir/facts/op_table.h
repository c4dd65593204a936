#pragma once
// What PyTorch's schemas and tags leave unsaid of single operators.

#include "ir/core/reason.h"
#include "ir/facts/transfer.h"

#include <llvm/ADT/ArrayRef.h>

#include <optional>
#include <string_view>

namespace gravure {

/// One row of the table; the default is an operator of which nothing more is to be said.
struct OpRow {
  std::optional<HostReason> reason;
  /// Names of parameters that are written, though the schema does not say so.
  llvm::ArrayRef<const char*> writes;
  bool writesAll = false;     // may write any tensor that it is given
  bool aliasesFirst = false;  // may return its first tensor's storage; the schema does not say so
  bool aliasesAll = false;    // may return any operand's storage
  bool random = false;        // draws from, or sets, a generator, though it has no tag
  bool repeats = false;       // has the tag, and repeats draws by seeds that are its operands
  bool effects = false;
  bool collective = false;
  bool wait = false;
  bool blocking = false;
  bool waitsInside = false;  // a collective: OpFacts::waitsInside
  Transfer transfer = Transfer::None;
  bool readsMetadata = false;           // reads sizes and other metadata, never data
  bool shapeDependsOnOperands = false;  // data-dependent only for some operands: a boolean mask
};

/// `name` with its namespace: "aten::native_batch_norm". A row holds for every overload, unless the
/// overload has a row of its own.
OpRow opRow(std::string_view name, std::string_view overload);

}  // namespace gravure
