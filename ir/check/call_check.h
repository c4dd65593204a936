#pragma once
// Do the arguments and outputs of a node fit the schema of the operator it calls?

#include "ir/core/args.h"
#include "ir/core/program.h"

#include <ATen/core/function_schema.h>

#include <string>

namespace gravure {

/// "" if the arguments of `node` fill the parameters of `schema` with values and constants of
/// fitting types; else a sentence that names the first parameter that they do not. More lenient than
/// TorchScript where calls convert: a number may stand for a tensor, an int for a float, one int for
/// a list of fixed length.
std::string checkArguments(const Node* node, const c10::FunctionSchema& schema);

/// "" if the outputs of `node` are what `schema` returns: one a return, or one a member where it
/// returns one list.
std::string checkOutputs(const Node* node, const c10::FunctionSchema& schema);

/// True if a constant may be the value of `type`.
bool constantFits(const Arg& constant, const c10::Type& type);

}  // namespace gravure
