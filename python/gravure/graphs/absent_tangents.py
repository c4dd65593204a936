"""A backward without the gradients of outputs that nobody differentiates.

Most models return more than their loss, and most loops call `backward()` on the loss alone. Eager
computes nothing for the rest. AOTAutograd's backward takes a gradient for each output: zeros, which
are as large as the output, are filled, copied and added.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from .read_graph import ReadGraph

_aten = torch.ops.aten

# What is computed of zeros alone is zeros.
_LINEAR = {
    _aten._to_copy,
    _aten._unsafe_view,
    _aten.alias,
    _aten.clone,
    _aten.detach,
    _aten.expand,
    _aten.neg,
    _aten.permute,
    _aten.reshape,
    _aten.squeeze,
    _aten.sum,
    _aten.t,
    _aten.transpose,
    _aten.unsqueeze,
    _aten.view,
}


def without_tangents(backward: fx.GraphModule, absent: Sequence[int]) -> fx.GraphModule | None:
    """A copy of `backward` in which the placeholders at `absent` are zeros that nobody reads.

    A sum with one is its other term: eager has no such sum, so the bits are eager's, also of -0.
    What takes such zeros otherwise gets them from an operator. None where not all sizes are known,
    or zeros would be laid out with gaps.
    """
    graph = fx.Graph()
    graph.output(graph.graph_copy(backward.graph, {}))
    old, new = backward.graph.output_node(), graph.output_node()
    new.meta = dict(old.meta)
    placeholders = graph.find_nodes(op="placeholder")
    zeros = {placeholders[i] for i in absent}
    for node in list(graph.nodes):
        if zeros.isdisjoint(node.all_input_nodes):
            continue
        if _is_linear(node) and node.args[0] in zeros:
            zeros.add(node)
        elif (rest := _rest_of_sum(node, zeros)) is not None:
            node.replace_all_uses_with(rest)
        elif _is_sum(node) and zeros.issuperset(node.all_input_nodes):
            zeros.add(node)
        else:
            for each in [n for n in node.all_input_nodes if n in zeros]:
                made = _zeros_like(graph, node, each)
                if made is None:
                    return None
                node.replace_input_with(each, made)
    graph.eliminate_dead_code()
    if any(placeholders[i].users for i in absent):
        return None
    return ReadGraph(backward, graph)


def _packet(node: fx.Node) -> Any:
    return getattr(node.target, "overloadpacket", None)


def _is_linear(node: fx.Node) -> bool:
    return node.op == "call_function" and _packet(node) in _LINEAR


def _is_sum(node: fx.Node) -> bool:
    return node.target is _aten.add.Tensor and not node.kwargs


def _rest_of_sum(node: fx.Node, zeros: set[fx.Node]) -> fx.Node | None:
    """The term of a sum that is no zero, if the sum is like it in all but its values."""
    if not _is_sum(node):
        return None
    terms = [each for each in node.args if each not in zeros]
    if len(terms) != 1 or not isinstance(terms[0], fx.Node):
        return None
    term, total = terms[0].meta.get("val"), node.meta.get("val")
    alike = (
        isinstance(term, torch.Tensor)
        and isinstance(total, torch.Tensor)
        and (term.dtype, term.device, term.shape) == (total.dtype, total.device, total.shape)
        and term.stride() == total.stride()
    )
    return terms[0] if alike else None


def _zeros_like(graph: fx.Graph, before: fx.Node, zero: fx.Node) -> fx.Node | None:
    """A call that makes what `zero` stands for; None where its layout is not known, or has gaps."""
    value = zero.meta.get("val")
    if not isinstance(value, torch.Tensor) or not value.is_contiguous():
        return None
    if not all(isinstance(size, int) for size in value.shape):
        return None
    with graph.inserting_before(before):
        made = graph.call_function(
            _aten.zeros.default,
            (list(value.shape),),
            {"dtype": value.dtype, "device": value.device},
        )
    made.meta = {"val": value}
    return made
