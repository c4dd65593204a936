#include "ir/core/fresh_name.h"

namespace gravure {

std::string freshName(const Graph& graph, const std::string& wished) {
  std::string name = wished;
  for (int suffix = 2; graph.debugNames().count(name) != 0; ++suffix)
    name = wished + "." + std::to_string(suffix);
  return name;
}

void nameAfter(Value* value, const Value* origin, const std::string& ending) {
  if (!origin->hasDebugName()) return;
  value->setDebugName(freshName(*value->owningGraph(), origin->debugName() + ending));
}

void takeName(Value* value, Value* old) {
  if (!old->hasDebugName()) return;
  const std::string name = old->debugName();
  old->setDebugName("");
  value->setDebugName(name);
}

}  // namespace gravure
