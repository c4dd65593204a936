#pragma once
// infer-sizes: sizes that follow from others replace sizes known only at run time.
//
// Terms: those of size_terms.h.
// Before: the pieces of a split, worked on one by one, are put together again; tracing knows the sum
//   of their sizes, and no more.
//     %p0 : Float(*, 64, …), %p1 : Float(*, 64, …) = aten::split_with_sizes(%x, [%n0, %n1])
//     %y : Float(*, 64, …) = aten::cat([%p0, %p1])
//     %n : int = aten::sym_size.int(%y, 0)
//     %e : Float(*, 64, …) = aten::expand(%z, [%n, 64])
// After: where %x has 256 rows,
//     %y : Float(256, 64, …) = aten::cat([%p0, %p1])
//     %e : Float(256, 64, …) = aten::expand(%z, [256, 64])
//   so that what works on the whole can be captured. A number that is the same in every step becomes
//   a constant among the arguments, and goes where nothing uses it. One Passed remark
//   ("sizes-inferred") an entry. The order of nodes stays.
//   What a backward takes has the type with which its forward saves it.
// Legal because split_with_sizes throws where its sizes do not add up, before the sum is put to use.
// Complexity: linear in nodes plus edges; one look at each type where every size is known.

#include "passes/pass.h"

namespace gravure {

void inferSizes(Program& program, PassContext& context);

}  // namespace gravure
