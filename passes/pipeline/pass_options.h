#pragma once
// The options that each pass takes in the text of a pipeline.

#include "passes/pass.h"

namespace gravure {

llvm::ArrayRef<PassOption> accumulateGradientsOptions();
llvm::ArrayRef<PassOption> pieceOptions();  // of batch-pointwise and place-products
llvm::ArrayRef<PassOption> classifyCapturabilityOptions();
llvm::ArrayRef<PassOption> partitionGraphOptions();
llvm::ArrayRef<PassOption> planMemoryOptions();  // of emit-runtime-calls, too

}  // namespace gravure
