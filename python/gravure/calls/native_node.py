"""A forward and its backward as one node of autograd's graph, made and run by the library.

AOTAutograd calls the two graphs from a Python function of autograd's, which carries every argument
and every saved tensor. Where nothing of what it does for special graphs is needed, one call of the
library runs the forward and makes a node whose backward needs no Python: backward_node.h, of
python/csrc.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from ..graphs.given_gradients import Forms, numbers_of
from ..graphs.traced_graphs import TracedGraphs
from ..library.direct_calls import direct
from ..text.entry_call import Call, picker
from ..torch_api.aot_metadata import Metadata
from ..torch_api.autograd import may_require_gradient
from ..torch_api.operators import pytree
from .seen_results import ResultsSeen

# The results of the graph for these arguments of Dynamo's; None, and nothing has run, where this
# call needs AOTAutograd's wrapper.
NativeCall = Callable[[Sequence[Any]], list[Any] | None]

_MOST_BITS = 62  # gradients of outputs that a number tells apart


class _Memory(bytearray):
    """The memory of a tensor, which keeps alive what is held: so can C++, which has the tensor."""

    held: Any


def native_call(
    program: Any,
    forward: Call,
    lists: dict[str, list[int]] | None,
    held: Any,
    label: str,
    number: int,
    seen: ResultsSeen,
) -> NativeCall | None:
    """How `program` is called as a node of autograd's graph; None where it cannot be.

    `lists`: autograd_lists(). `held` is what the program needs as long as it lives, which may be
    longer than anybody else does. `label` names the graph in warnings. `number`: that of its
    ProgramsBeside. `seen`: what looks at its results.
    """
    if lists is None:
        return None
    memory = _Memory(1)
    memory.held = held
    alive = torch.frombuffer(memory, dtype=torch.uint8)
    more = {"number": [number], "graph": [seen.number], "through": seen.through}
    program.set_autograd(lists | more, alive, label)
    run = direct(program, "run_differentiable")
    kept = set(forward.kept)
    pick = picker([i for i in forward.taken if i not in kept])
    return lambda args: run(pick(args)) or None


def autograd_lists(
    forward: Call, backward: Call, traced: TracedGraphs, forms: Forms
) -> dict[str, list[int]] | None:
    """How a forward and its backward hang together in autograd's graph; None where they cannot.

    Each saved value is a result of the one call and an argument of the other, of the graphs
    `traced`. `forms`: of the gradients of outputs that the backward is for.
    """
    lists = _plan(forward, backward, traced)
    if lists is None or traced.metadata is None:
        return None
    lists["forms"] = numbers_of(forms, len(lists["tangent_to"]))
    depends = _saves_dependent(traced.forward, traced.own_results, traced.metadata)
    modes = [traced.metadata.may_vary, depends, traced.in_autocast]
    return lists | {"modes": list(map(int, modes))}


def _plan(forward: Call, backward: Call, traced: TracedGraphs) -> dict[str, list[int]] | None:
    """AutogradPlan of python/csrc/autograd/autograd_plan.h but for what autograd_lists() adds."""
    meta, graph, outputs = traced.metadata, traced.forward, traced.own_results
    if meta is None or traced.backward is None:
        return None
    if not meta.is_ordinary or not meta.are_plain or len(meta.results) != outputs:
        return None
    values = graph.graph.output_node().args[0]
    inputs = graph.graph.find_nodes(op="placeholder")
    if not all(map(_is_tensor, [*inputs, *values[:outputs]])):
        return None
    # Fewer: AOTAutograd takes an argument that comes twice once. More: it adds random states.
    if not traced.dynamo_arguments == forward.arguments == len(meta.arguments):
        return None
    results, saved = forward.results[:outputs], forward.results[outputs:]
    shown = [position for position, _ in results]
    differentiable = [int(info.requires_grad) for info in meta.results]
    formats = meta.tangent_formats
    tangents = range(len(saved), backward.arguments)
    as_many = sum(differentiable) == len(tangents) == len(formats)
    if -1 in shown or len(set(shown)) < len(shown):
        return None
    if not tangents or not as_many or None in formats:
        return None
    to = {argument: position for position, argument in enumerate(backward.taken)}
    # Numbers that the backward needs are returned last, and passed first.
    numbers = sum(not _is_tensor(value) for value in values[outputs:])
    kept: dict[int, int] = {}  # output of the forward, and the backward's input that it is
    for i, (position, _) in enumerate(saved):
        if position >= 0 and kept.get(position, -1) < 0:
            kept[position] = to.get((i + numbers) % len(saved), -1)
    edges = _edges(forward, backward, traced)
    if edges is None:
        return None
    needs = _needs(traced.backward, len(tangents))
    return {
        "outputs": shown,
        "differentiable": differentiable,
        "saved": list(kept),
        "saved_to": list(kept.values()),
        "tangent_to": [to.get(i, -1) for i in tangents],
        "tangent_formats": formats,
        "edges": [i for i, _, _ in edges],
        "frozen": [
            position
            for position, i in enumerate(forward.taken)
            if not meta.arguments[i].requires_grad and may_require_gradient(inputs[i].meta["val"])
        ],
        "gradients": [g for _, g, _ in edges],
        "needs": [needs[argument] for _, _, argument in edges],
    }


def _edges(
    forward: Call, backward: Call, traced: TracedGraphs
) -> list[tuple[int, int, int]] | None:
    """Of each input of the forward that has a gradient: its position among the entry's inputs, and
    that of the gradient among the outputs of the backward's entry, and of its graph.

    One for each term of a gradient, in order, whether the backward gives all of them, or their sum
    alone: then the others have no output, -1.
    """
    edges = []
    inputs = {argument: i for i, argument in reversed([*enumerate(forward.taken)])}
    arguments = [*range(forward.arguments), *traced.apart]
    for i, (position, fixed) in enumerate(backward.results):
        if position < 0:
            if fixed is not None:
                return None
            continue
        if i >= len(arguments) or arguments[i] not in inputs:
            return None
        edges.append((inputs[arguments[i]], position, i))
    if not traced.apart:
        for argument, count in traced.terms.items():
            edges += [(inputs[argument], -1, argument)] * (count - 1)
    return edges


def _needs(backward: fx.GraphModule, tangents: int) -> list[int]:
    """For each of its results, the gradients of outputs that it depends on: a bit each; -1: any.

    Where none of them comes, eager leaves None, and not zeros, which an optimizer would step with.
    """
    values = backward.graph.output_node().args[0]
    if tangents > _MOST_BITS:
        return [-1] * len(values)
    last = backward.graph.find_nodes(op="placeholder")[-tangents:]
    reached = {node: 1 << i for i, node in enumerate(last)}
    for node in backward.graph.nodes:
        for each in node.all_input_nodes:
            reached[node] = reached.get(node, 0) | reached.get(each, 0)
    return [reached.get(value, 0) or -1 for value in values]


def _saves_dependent(forward: fx.GraphModule, outputs: int, meta: Metadata) -> bool:
    """Whether what is saved depends on what requires a gradient: then gradients do, too."""
    inputs = forward.graph.find_nodes(op="placeholder")
    infos = zip(inputs, meta.arguments, strict=True)
    depends = {node for node, info in infos if info.requires_grad}
    for node in forward.graph.nodes:  # a `detach` may be autograd's own, of what it saves
        if not depends.isdisjoint(node.all_input_nodes) and _is_inexact(node):
            depends.add(node)
    saved = forward.graph.output_node().args[0][outputs:]
    return any(node in depends for node in saved)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, fx.Node) and isinstance(value.meta.get("val"), torch.Tensor)


def _is_inexact(node: fx.Node) -> bool:
    values = pytree.tree_leaves(node.meta.get("val"))
    kinds = [value.dtype for value in values if isinstance(value, torch.Tensor)]
    return not kinds or any(kind.is_floating_point or kind.is_complex for kind in kinds)
