#pragma once
// Private: torch::jit::Graph::all_nodes and all_values, the tables of a graph.
//
// To make room in them at once for what a large text holds. Without it reading one takes twice as long,
// and nothing else.

#include <torch/csrc/jit/ir/ir.h>

#include <cstddef>

namespace gravure::torch_private {
namespace {

void reserveNodesAndValues(torch::jit::Graph& graph, size_t buckets);

/// The standard lets an explicit instantiation name a private member ([temp.spec.general]/6).
template <auto nodes, auto values>
struct GraphTables {
  friend void reserveNodesAndValues(torch::jit::Graph& graph, size_t buckets) {
    (graph.*nodes).reserve(buckets);
    (graph.*values).reserve(buckets);
  }
};
template struct GraphTables<&torch::jit::Graph::all_nodes, &torch::jit::Graph::all_values>;

}  // namespace
}  // namespace gravure::torch_private
