#pragma once
// What Gravure knows of an operator, for tests that hold it against PyTorch.

#include <string>

namespace gravure {

/// A JSON object (ir/facts/op_facts_json.h) for `name` ("aten::add") and `overload` ("Tensor"); "" if PyTorch
/// knows no such operator.
std::string operatorFacts(const std::string& name, const std::string& overload);

}  // namespace gravure
