#pragma once
// classify-capturability: a verdict for each node, captured or host, with one reason.
//
// Terms. Program's device: computeDevice(program), where captured work runs; it may be the CPU.
//   Runtime number: an int, float or bool that comes from device data (a host read, a data-dependent
//   size), so it changes from step to step. A symbolic size of an input is none: it is guarded.
//   Host constant: a CPU tensor without dimensions whose number is the same each step.
// Before: any verified program; nodes are leaves or prim::If.
// After: nodes that must run outside a graph carry host="reason"; all others may be captured. Number
//   nodes (facts.numbersOnly) carry none: they work on numbers alone, on the host, at no cost.
//   Nothing else changes. One Missed remark a host node, named as the reason.
// Complexity: linear in nodes plus edges.
// Refuses: an operator that PyTorch does not know (factsOf).

#include "passes/pass.h"

namespace gravure {

void classifyCapturability(Program& program, PassContext& context);
/// Number nodes have no reason. A node without one is of an operator that may be captured, all
/// its sizes are known, and its tensors are on the program's device, but for CPU tensors without
/// dimensions among its operands. What follows from other nodes (which numbers come from device data)
/// is proven by running: `gravure opt --check-bits`.
void verifyClassifyCapturability(const Program& program, const PassContext& context);

/// True if `request` ("aten::mm", "aten::add.Tensor", or a module path) names `node`: its operator,
/// with any overload unless one is given, or its module or one of the modules around it.
bool isRequested(const Node* node, std::string_view request);

}  // namespace gravure
