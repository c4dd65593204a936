#include "python/csrc/planning/operator_facts.h"

#include "ir/facts/op_facts_json.h"

#include <llvm/Support/raw_ostream.h>

namespace gravure {

std::string operatorFacts(const std::string& name, const std::string& overload) {
  const OpFacts* facts = findOpFacts(c10::Symbol::fromQualString(name), overload);
  std::string json;
  llvm::raw_string_ostream os(json);
  if (facts) printFactsJson(*facts, os);
  return json;
}

}  // namespace gravure
