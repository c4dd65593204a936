#pragma once
// place-products: products of matrices are written where a cat would put them.
//
// Terms. Pieces, whole: those of batch-pointwise.
// Before: a loop over experts was traced, and what comes next works on the whole.
//     %p0 : Float(*, 64, …), %p1 : Float(*, 64, …) = aten::split_with_sizes(%p, [%n0, %n1])
//     %a0 : Float(*, 64, …) = aten::mm(%p0, %w0)
//     %a1 : Float(*, 64, …) = aten::mm(%p1, %w1)
//     %a : Float(256, 64, …) = aten::cat([%a0, %a1])
// After:
//     %p0, %p1 as before
//     %a : Float(256, 64, …) = aten::empty.memory_format([256, 64], dtype=…, device=…)
//     %a0.place : Float(*, 64, …), %a1.place : Float(*, 64, …) = aten::split_with_sizes(%a, [%n0, %n1])
//     %a0 : Float(*, 64, …) = aten::mm.out(%p0, %w0, out=%a0.place)
//     %a1 : Float(*, 64, …) = aten::mm.out(%p1, %w1, out=%a1.place)
//   One Passed remark ("products-placed") a cat.
// What it is for: products of unknown size run on the host, each with an allocation of its own; the
//   cat is one more call, and copies all that they wrote.
// Legal where a product has the same bits wherever its result lies, at multiples of
//   PassOptions::pieceAlignment bytes: cuBLAS chooses the same algorithms at multiples of 16
//   (tests/cuda/alignment.py). Products other than aten::mm stay: those of aten::addmm are cuBLASLt's.
// Refuses: pieces that the caller gets, by a view too, that are written to, or whose number of rows is
//   not there before the first product; cats of unknown size, or that are written to; what must not lie
//   in one memory (passes/analysis/sharing.h), as a whole that the caller gets and pieces that a backward
//   needs.
// Order: the whole and its places stand before the first product, all else keeps its order.
// Complexity: linear in nodes plus edges.

#include "passes/pass.h"

namespace gravure {

void placeProducts(Program& program, PassContext& context);

}  // namespace gravure
