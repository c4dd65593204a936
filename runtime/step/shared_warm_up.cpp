#include "runtime/step/shared_warm_up.h"

#include "ir/core/program.h"

namespace gravure {

std::string operatorsOf(std::vector<EntryCode>& codes) {
  std::string found;
  for (EntryCode& code : codes) {
    found += code.entry->name + ':' + std::to_string(code.outputs.size()) + '\n';
    code.forEachCall([&](Call& call) {
      found += call.node->kind().toQualString();
      found += ' ' + std::to_string(call.step) + '\n';
    });
    for (const Launch& launch : code.launches) found += std::to_string(launch.calls.size()) + '\n';
    found += std::to_string(code.stages.size()) + '\n';
  }
  return found;
}

}  // namespace gravure
