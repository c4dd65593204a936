#pragma once
// What PyTorch's schemas and tags leave unsaid of single operators.

#include "ir/reason.h"

#include <cstdint>
#include <optional>
#include <string_view>

namespace gravure {

/// One row of the table; the default is an operator of which nothing more is to be said.
struct OpRow {
  std::optional<HostReason> reason;
  bool aliasesFirst =
      false;                // returns its first tensor's storage, though the schema does not say so
  bool aliasesAll = false;  // may return any operand's storage
  uint64_t writtenArgs = 0;  // parameters written, though the schema does not say so
  bool effects = false;
  bool collective = false;
  bool wait = false;
  bool blocking = false;
  bool readsMetadata = false;           // reads sizes, never data
  bool shapeDependsOnOperands = false;  // data-dependent only for some operands: a boolean mask
};

/// `name` with its namespace, without overload: "aten::native_batch_norm".
OpRow opRow(std::string_view name);

}  // namespace gravure
