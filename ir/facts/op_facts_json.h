#pragma once
// What is known of one operator, as data for tests and for people.

#include "ir/facts/op_facts.h"

namespace llvm {
class raw_ostream;
}

namespace gravure {

/// One JSON object: "reason" (a name, or null), "writes" (positions of parameters), "aliases" (for
/// each return such a list), and the flags of OpFacts that are set, as "flags".
void printFactsJson(const OpFacts& facts, llvm::raw_ostream& os);

}  // namespace gravure
