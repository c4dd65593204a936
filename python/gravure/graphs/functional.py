"""Turns functional forms of mutating custom operators back into clones and the operator itself."""

from __future__ import annotations

import torch
from torch import fx

from ..torch_api.inductor import decompose_auto_functionalized

_FUNCTIONAL = (
    torch.ops.higher_order.auto_functionalized,
    torch.ops.higher_order.auto_functionalized_v2,
)


def reinplace_custom_operators(graph: fx.GraphModule) -> None:
    """Decomposes `auto_functionalized` nodes, in place.

    Each base that the operator writes is cloned first: without `only_clone_these_tensors` the
    decomposition assumes that Inductor has decided which clones are needed, and drops them all.
    """
    found = False
    for node in graph.graph.nodes:
        if node.op == "call_function" and node.target in _FUNCTIONAL:
            found = True
            bases = node.kwargs.get("_all_bases")
            if bases is not None:
                node.meta["only_clone_these_tensors"] = list(range(len(bases)))
    if not found:
        return
    decompose_auto_functionalized(graph.graph)
    graph.recompile()
