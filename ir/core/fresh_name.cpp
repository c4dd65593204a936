#include "ir/core/fresh_name.h"

namespace gravure {

std::string freshName(const Graph& graph, const std::string& wished) {
  std::string name = wished;
  for (int suffix = 2; graph.debugNames().count(name) != 0; ++suffix)
    name = wished + "." + std::to_string(suffix);
  return name;
}

}  // namespace gravure
