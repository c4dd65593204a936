#pragma once
// Private: where autograd's engine keeps what has come to a node that waits for more. Of the backward that runs
// PyTorch gives out one member alone, the set of its nodes, so the others are found beside it. Without it nobody
// would know whether a graph's gradients come behind others', and sums of three would round otherwise than eager's.

#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/graph_task.h>

#include <cstddef>
#include <mutex>

namespace gravure::torch_private {

/// Whether, in the backward that this thread runs, a gradient has come by now to where `edge` leads. True where
/// no backward is known to run: compiled autograd's is only recorded.
inline bool hasArrived(const torch::autograd::Edge& edge) {
  using torch::autograd::GraphTask;
  const auto* nodes = torch::autograd::get_current_graph_task_nodes_in_graph();
  if (nodes == nullptr) return true;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Winvalid-offsetof"
  constexpr size_t kNodes = offsetof(GraphTask, nodes_in_graph_);
#pragma GCC diagnostic pop
  auto* task = reinterpret_cast<GraphTask*>(
      reinterpret_cast<char*>(const_cast<std::unordered_set<torch::autograd::Node*>*>(nodes)) -
      kNodes);
  const std::lock_guard lock(task->mutex_);
  const auto found = task->not_ready_.find(edge.function.get());
  return found != task->not_ready_.end() && found->second.buffer[edge.input_nr].defined();
}

}  // namespace gravure::torch_private
