#pragma once
// batch-pointwise: one call on the whole instead of one on each of its pieces.
//
// Terms. Pieces: tensors that split the rows (first dimension) of one tensor among them, the whole;
//   how many rows each has is known only at run time, their sum before. Batch: pointwise nodes of one
//   operator, one a piece, none of which depends on another.
// Before: a loop over experts was traced, piece by piece.
//     %a0 : Float(*, 64, …) = aten::mm(%p0, %w0)
//     %b0 : Float(*, 64, …) = aten::silu(%a0)
//     %c0 : Float(*, 64, …) = aten::mm(%b0, %v0)
//     %a1 : Float(*, 64, …) = aten::mm(%p1, %w1)
//     %b1 : Float(*, 64, …) = aten::silu(%a1)
//     %c1 : Float(*, 64, …) = aten::mm(%b1, %v1)
// After:
//     %a0, %a1 as before
//     %a.whole : Float(256, 64, …) = aten::cat([%a0, %a1])
//     %b.whole : Float(256, 64, …) = aten::silu(%a.whole)
//     %b0 : Float(*, 64, …), %b1 : Float(*, 64, …) = aten::split_with_sizes(%b.whole, [%n0, %n1])
//     %c0, %c1 as before
//   A whole that is there already (the operand of the split that made the pieces, another batch's
//   result) is not put together again, and a cat of the pieces of a batch becomes its whole. One
//   Passed remark ("pointwise-batched") a batch.
// What it is for: a call of unknown size runs on the host and costs a launch; the whole's size is
//   known, so its call can be captured.
// Legal where each element of a result follows from the operands' elements at its index alone, and in
//   the same way wherever it lies: PyTorch's tag `pointwise`; on the CPU, whose vectors and their
//   remainders may round otherwise, for operators with one exact rounding only. Pieces then lie within
//   a whole, at multiples of PassOptions::pieceAlignment bytes: what reads them must not care. cuBLAS
//   chooses the same algorithms for operands at multiples of 16 bytes (tests/cuda/alignment.py),
//   reductions and pointwise kernels vectorise up to 64.
// Refuses: pieces that the caller gets, or that are written to; pieces that must not lie in one memory
//   (passes/analysis/sharing.h); a cat of them that the caller gets stays where they are saved, too.
// Order: a batch stands where its last piece stood; what used an earlier piece moves behind it, all
//   else keeps its order.
// Complexity: linear in nodes plus edges, times log n for the order; once more for each round in which a
//   whole that was put together made another batch pay.

#include "passes/pass.h"

namespace gravure {

/// A call saved is worth as much as copying so many bytes: 5 us of the host, at 2 TB/s of what is copied
/// (read and written: 4 TB/s, an H200's).
inline constexpr int64_t kBytesPerCall = int64_t{10} << 20;

void batchPointwise(Program& program, PassContext& context);

}  // namespace gravure
