#pragma once
// Which output of a node is which return of its operator. A list of known length may be unpacked: each
// member is an output of its own.
//
//   %a, %b, %c = op(%x)   of an operator that returns (Tensor, Tensor[]): %b and %c are the members

#include "ir/core/program.h"

#include <ATen/core/function_schema.h>

#include <cstddef>
#include <cstdint>
#include <optional>

namespace gravure {

struct UnpackedList {
  size_t at = 0;       // position among the returns
  size_t members = 0;  // outputs from there on
};

/// The one return of `schema` that `node` unpacks; nullopt where each output is a return, and where the
/// numbers of outputs and returns do not fit.
std::optional<UnpackedList> unpackedList(const Node* node, const c10::FunctionSchema& schema);
/// The return that output `output` is, or is a member of.
size_t returnOf(size_t output, const std::optional<UnpackedList>& unpacked);

}  // namespace gravure
