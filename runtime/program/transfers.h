#pragma once
// PyTorch's copies of activations to the host and back (ao::offload, ao::reload, ao::wait_tensor), done here.
//
// PyTorch's own are Python, which notes a copy by an address and empties storages: neither goes into a graph.
// These do the same on a stream of their own, uncaptured and in a capture, where that stream joins the
// captured one at the wait. What was copied stays until the wait by the program's order, so nothing is emptied.
// Source: torch/_functorch/_activation_offloading/offload_ops.py.

#include "ir/facts/transfer.h"

#include <ATen/core/stack.h>

#include <functional>

namespace gravure {

/// What runs instead of the operator.
/// offload(t): t on the host, in pinned memory if t is on a GPU.
/// reload(t, device, sizes?, strides?): t on `device`.
/// wait(t, …): t, once what the current stream gets next comes behind its copy; c10::Error for a t on a
/// GPU to which no copy is under way.
std::function<void(torch::jit::Stack&)> transferOf(Transfer transfer);

}  // namespace gravure
