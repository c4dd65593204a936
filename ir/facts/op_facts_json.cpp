#include "ir/facts/op_facts_json.h"

#include <llvm/Support/JSON.h>
#include <llvm/Support/raw_ostream.h>

namespace gravure {

void printFactsJson(const OpFacts& facts, llvm::raw_ostream& os) {
  const std::pair<const char*, bool> flags[] = {
      {"random", facts.random},
      {"collective", facts.collective},
      {"wait", facts.wait},
      {"blocking", facts.blocking},
      {"effects", facts.effects},
      {"numbers", facts.numbersOnly},
      {"waits-inside", facts.waitsInside},
  };
  llvm::json::OStream json(os);
  const auto positions = [&](const ParameterSet& parameters) {
    for (const unsigned i : parameters.set_bits()) json.value(static_cast<int64_t>(i));
  };
  json.object([&] {
    json.attribute("reason", facts.reason ? llvm::json::Value(reasonName(*facts.reason)) : nullptr);
    json.attributeArray("writes", [&] { positions(facts.writtenArgs); });
    json.attributeArray("aliases", [&] {
      for (const ParameterSet& sources : facts.aliasedArgs) json.array([&] { positions(sources); });
    });
    json.attributeArray("flags", [&] {
      for (const auto& [name, set] : flags) {
        if (set) json.value(name);
      }
    });
  });
}

}  // namespace gravure
