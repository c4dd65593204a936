#pragma once
// How products choose their algorithm, as far as passes must know.

#include <cstdint>

namespace gravure {

/// PassOptions::pieceAlignment for this process as it is set now: 64 bytes, or 256 where products are
/// cuBLASLt's (torch.backends.cuda.preferred_blas_library), up to which PyTorch has it choose an
/// algorithm by alignment (_getAlignment of ATen/cuda/CUDABlas.cpp). For who fills the options: passes
/// read nothing of the process.
int64_t pieceAlignmentOfBlas();

}  // namespace gravure
