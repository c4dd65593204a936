#include "passes/analysis/fresh_name.h"

namespace gravure {

std::string freshName(const Graph& graph, const std::string& wished) {
  std::string name = wished;
  for (int number = 2; graph.debugNames().count(name) != 0; ++number)
    name = wished + "." + std::to_string(number);
  return name;
}

}  // namespace gravure
