"""What the gradient of a graph's input is added up of: a term for each use of the input.

Autograd's engine adds what comes to a tensor, in the order in which it comes. In eager the uses of
a tensor inside of a compiled graph and those outside of it come one after another; a graph that
adds its own first and hands over their sum rounds otherwise, as soon as three terms meet. So there
is a backward that hands over the terms, for where others come before them (programs_beside.py).

Which additions of the backward graph are those of an input, and not of what is computed of it, the
graph does not say: `h = x + f(x)` hands the sum that came to `h` on to `x` as it is. So terms are
counted while AOTAutograd runs the engine; the last additions, one fewer, are those of the input.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx

from ..torch_api.autograd import leaf_of
from ..torch_api.operators import pytree
from .read_graph import ReadGraph
from .traced_graphs import TracedGraphs

_ADD = torch.ops.aten.add.Tensor


@contextlib.contextmanager
def counting_terms(graph: fx.GraphModule) -> Iterator[dict[int, int]]:
    """Inside, Dynamo's `graph` notes while it is differentiated how many terms the gradient of each
    input has, by its position."""
    counts: dict[int, int] = {}
    end = graph.graph.output_node()
    inputs = graph.graph.find_nodes(op="placeholder")

    def watch(results: Any, *inputs: Any) -> None:
        _watch(counts, pytree.tree_leaves(results), inputs)

    with graph.graph.inserting_before(end):
        # Graphs are run node by node while they are traced: it needs no code.
        note = graph.graph.call_function(watch, (end.args[0], *inputs))
    try:
        yield counts
    finally:
        graph.graph.erase_node(note)


def _watch(counts: dict[int, int], results: Sequence[Any], inputs: Sequence[Any]) -> None:
    """Has the nodes of autograd's graph behind `results` count what they give to `inputs`."""
    counts.clear()
    leaves: dict[int, int] = {}
    places: dict[tuple[Any, int], int] = {}
    for i, value in enumerate(inputs):
        if isinstance(value, Tensor) and value.requires_grad:
            leaves[id(value)] = i
            if value.grad_fn is not None:
                places[value.grad_fn, value.output_nr] = i
    waiting = [value.grad_fn for value in results if isinstance(value, Tensor)]
    seen = {None}
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        given = []
        for k, (to, at) in enumerate(node.next_functions):
            argument = places.get((to, at), leaves.get(id(leaf_of(to))))
            if argument is not None:
                given.append((k, argument))
            waiting.append(to)
        if given:
            node.register_hook(_counting(counts, given))


def _counting(
    counts: dict[int, int], given: Sequence[tuple[int, int]]
) -> Callable[[Sequence[Any], Any], None]:
    """A hook. `given`: which gradients of the node are of which input."""

    def count(gradients: Sequence[Any], _: Any) -> None:
        for k, argument in given:
            counts[argument] = counts.get(argument, 0) + (gradients[k] is not None)

    return count


def known_terms(backward: fx.GraphModule, counts: Mapping[int, int]) -> dict[int, int]:
    """Of the arguments whose gradient has several terms that number, where the graph adds them."""
    values = backward.graph.output_node().args[0]
    return {
        i: count
        for i, count in sorted(counts.items())
        if count > 1 and i < len(values) and _terms_of(values[i], count)
    }


def _terms_of(value: Any, count: int) -> list[fx.Node]:
    """The terms of the sum `value`, in the order in which they are added; none where it is another
    sum."""
    terms: list[fx.Node] = []
    while len(terms) < count - 1:
        if not isinstance(value, fx.Node) or value.target is not _ADD or value.kwargs:
            return []
        value, term = value.args
        if not isinstance(term, fx.Node):
            return []
        terms.append(term)
    return [value, *reversed(terms)] if isinstance(value, fx.Node) else []


def with_terms_apart(traced: TracedGraphs) -> TracedGraphs:
    """The graphs with a backward that gives the first term of each sum in its place, and the others
    behind all gradients, in the order of `apart`."""
    assert traced.backward is not None
    graph = fx.Graph()
    graph.output(graph.graph_copy(traced.backward.graph, {}))
    end = graph.output_node()
    values = list(end.args[0])
    apart = []
    sums = []
    for argument, count in traced.terms.items():
        sums.append(values[argument])
        values[argument], *others = _terms_of(values[argument], count)
        values += others
        apart += [argument] * len(others)
    end.args = (tuple(values),)
    for value in sums:
        while not value.users and value.target is _ADD:
            former, value = value, value.args[0]
            graph.erase_node(former)
    return replace(traced, backward=ReadGraph(traced.backward, graph), apart=tuple(apart))


def added(results: Sequence[Any], apart: Sequence[int]) -> list[Any]:
    """A gradient for each argument, of what such a backward gives."""
    own = len(results) - len(apart)
    gradients = list(results[:own])
    for argument, term in zip(apart, results[own:], strict=True):
        gradients[argument] = gradients[argument] + term
    return gradients
