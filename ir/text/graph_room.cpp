#include "ir/text/graph_room.h"

#include <torch/csrc/jit/ir/ir.h>

namespace gravure {
namespace {

using torch::jit::Graph;
using torch::jit::Value;

void reserveNodesAndValues(Graph& graph, size_t buckets);

/// The graph shows its tables of nodes and values to nobody, but an explicit instantiation may name
/// private members.
template <auto nodes, auto values>
struct HiddenTables {
  friend void reserveNodesAndValues(Graph& graph, size_t buckets) {
    (graph.*nodes).reserve(buckets);
    (graph.*values).reserve(buckets);
  }
};
template struct HiddenTables<&Graph::all_nodes, &Graph::all_values>;

}  // namespace

void makeRoom(Graph& graph, size_t count) {
  // In a bucket of its own a member is found without a look at others. Passes add some, too.
  const size_t buckets = 2 * count;
  reserveNodesAndValues(graph, buckets);
  // The graph is not const, and offers this table only so.
  const_cast<std::unordered_map<std::string, Value*>&>(graph.debugNames()).reserve(buckets);
}

}  // namespace gravure
