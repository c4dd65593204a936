#pragma once
// Differs: how a node of autograd's is held, and who is told of a new one.
//
// Since 2.13 a node counts its own holders; before, a shared_ptr did, with a deleter that takes a long
// graph apart without recursion. Since 2.14 a node is announced once it is whole, for hooks on new nodes
// (torch.autograd.graph.node_creation_hook): without that they would miss ours, and nothing else.

#include <torch/csrc/autograd/function.h>
#include <torch/headeronly/version.h>

#include <utility>

namespace gravure::torch_private {

#if TORCH_VERSION_MINOR >= 13
template <typename T>
using NodePointer = c10::intrusive_ptr<T>;

template <typename T, typename... Arguments>
NodePointer<T> makeNode(Arguments&&... arguments) {
  return c10::make_intrusive<T>(std::forward<Arguments>(arguments)...);
}
#else
template <typename T>
using NodePointer = std::shared_ptr<T>;

template <typename T, typename... Arguments>
NodePointer<T> makeNode(Arguments&&... arguments) {
  return NodePointer<T>(new T(std::forward<Arguments>(arguments)...), torch::autograd::deleteNode);
}
#endif

/// To be called once the results of `node` are its own and it has what it saves.
inline void announce(const NodePointer<torch::autograd::Node>& node) {
#if TORCH_VERSION_MINOR >= 14
  torch::autograd::fire_node_creation_hooks(node);
#else
  (void)node;
#endif
}

}  // namespace gravure::torch_private
