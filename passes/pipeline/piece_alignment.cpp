#include "passes/pipeline/piece_alignment.h"

#include <ATen/Context.h>

namespace gravure {

int64_t pieceAlignmentOfBlas() {
  return at::globalContext().blasPreferredBackend() == at::BlasBackend::Cublaslt ? 256 : 64;
}

}  // namespace gravure
