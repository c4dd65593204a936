#include "ir/text/graph_capacity.h"

#include "ir/torch_private/graph_tables.h"

namespace gravure {

using torch::jit::Graph;
using torch::jit::Value;

void reserveNodes(Graph& graph, size_t count) {
  // In a bucket of its own a member is found without a look at others. Passes add some, too.
  const size_t buckets = 2 * count;
  torch_private::reserveNodesAndValues(graph, buckets);
  // The graph is not const, and offers this table only so.
  const_cast<std::unordered_map<std::string, Value*>&>(graph.debugNames()).reserve(buckets);
}

}  // namespace gravure
