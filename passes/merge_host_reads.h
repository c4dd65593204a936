#pragma once
// merge-host-reads: reads of one tensor's elements become one copy to the host and one wait.
//
// Terms. Host read: aten::_local_scalar_dense or aten::item of an element of a tensor: of the tensor
//   itself if it has no dimensions, of aten::select(t, 0, i), or of a member of aten::unbind(t, 0).
//   A list of numbers (`.tolist()`) is traced to one host read an element.
// Before: host reasons as classify-capturability wrote them.
// After: where two or more host reads of one tensor stand with no write to its storage between them:
//     %a : int, %b : int, … = cudagraph::read_host(%t)
//   where the first stood, one output an element, with the names, types, source and module of the
//   reads; host="host-sync". The reads are gone, and the selects and unbinds that nothing else uses.
//   One Passed remark ("host-reads-merged") a merge.
// Moving a read up to the first is legal: the tensor is there, its data is the same, and reading has
//   no other effect.
// Complexity: linear in nodes plus edges plus elements read.
// Refuses: tensors of more than one dimension, of unknown size, or of more than kMaxMergedElements elements;
//   reads inside blocks. They stay as they are.

#include "passes/pass.h"

namespace gravure {

inline constexpr int64_t kMaxMergedElements = 4096;

void mergeHostReads(Program& program, PassContext& context);
/// Each read_host reads a tensor of a known size, with one output an element.
void verifyMergeHostReads(const Program& program, const PassContext& context);

}  // namespace gravure
