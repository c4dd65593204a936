"""A backward for the gradients that it is given.

AOTAutograd's backward takes a gradient for each output, in the output's memory format. Loops do
otherwise. Most models return more than their loss, and most loops call `backward()` on the loss
alone: eager computes nothing for the rest, where AOTAutograd has zeros, which are as large as the
output, are filled, copied and added. And the gradient of a transposed output, or that of a sum,
lies as its consumer made it: eager reads it so, and AOTAutograd copies it first, so that sums run
in another order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import fx

from .absent_values import depending, is_absent
from .moved_values import Traced, are_alike, by_stride, follow_layouts, inverse, laid
from .read_graph import ReadGraph

_aten = torch.ops.aten

_ABSENT, _AS_TRACED = -1, -2  # TangentForm of python/csrc/autograd/autograd_plan.h


class Form(NamedTuple):
    """How the gradient of an output comes: never, with these strides, or as it was traced."""

    absent: bool = False
    strides: tuple[int, ...] | None = None


Forms = tuple[Form, ...]  # one a gradient; () where all come as traced


def forms_of(numbers: Sequence[int]) -> Forms:
    """As the library writes them."""
    forms, rest = [], list(numbers)
    while rest:
        number = rest.pop(0)
        if number < 0:
            forms.append(Form(absent=number == _ABSENT))
        else:
            forms.append(Form(strides=tuple(rest[:number])))
            del rest[:number]
    return tuple(forms) if any(form != Form() for form in forms) else ()


def numbers_of(forms: Forms, count: int) -> list[int]:
    """`forms` of `count` gradients, as the library reads them."""
    found: list[int] = []
    for form in forms or (Form(),) * count:
        if form.strides is not None:
            found += [len(form.strides), *form.strides]
        else:
            found.append(_ABSENT if form.absent else _AS_TRACED)
    return found


def absent_alone(forms: Forms) -> Forms:
    """The same, but that what comes is brought into its memory format first."""
    kept = tuple(Form(absent=form.absent) for form in forms)
    return kept if any(form.absent for form in kept) else ()


def with_given(backward: fx.GraphModule, first: int, forms: Forms) -> fx.GraphModule | None:
    """A copy of `backward` for such gradients, the placeholders from `first` on.

    Nobody reads those that are absent, and nothing is computed of them (absent_values.py). A sum
    with one is its other term: eager has no such sum, so the bits are eager's, also of -0, and of
    what sums such a term in the order in which it lies. What takes one otherwise gets zeros from an
    operator. None where not all sizes are known, or zeros would be laid out with gaps.
    """
    absent = [first + i for i, form in enumerate(forms) if form.absent]
    strided = {first + i: form.strides for i, form in enumerate(forms) if form.strides is not None}
    given = range(first, first + len(forms))
    found = _with_given(backward, given, absent, strided, as_they_lie=True)
    if found is None and not strided:
        found = _with_given(backward, given, absent, strided, as_they_lie=False)
    return found


def _with_given(
    backward: fx.GraphModule,
    given: Iterable[int],
    absent: Iterable[int],
    strided: Mapping[int, tuple[int, ...]],
    *,
    as_they_lie: bool,
) -> fx.GraphModule | None:
    """`given`: the gradients among the placeholders. `as_they_lie`: also a sum that lies otherwise
    than its term is that term."""
    graph = fx.Graph()
    graph.output(graph.graph_copy(backward.graph, {}))
    old, new = backward.graph.output_node(), graph.output_node()
    new.meta = dict(old.meta)
    placeholders = graph.find_nodes(op="placeholder")
    zeros = {placeholders[i] for i in absent}
    moved: dict[fx.Node, Traced] = {}
    for i, strides in strided.items():
        node = placeholders[i]
        value, node.meta["val"] = node.meta.get("val"), laid(node.meta.get("val"), strides)
        if node.meta["val"] is None:
            return None
        for user in node.users:
            moved.setdefault(user, {})[node] = value
    gradients = depending(graph, [placeholders[i] for i in given])
    for node in list(graph.nodes):
        if zeros.isdisjoint(node.all_input_nodes):
            continue
        if is_absent(node, zeros, gradients):
            zeros.add(node)
        elif (rest := _rest_of_sum(node, zeros, as_it_lies=as_they_lie)) is not None:
            if rest.meta["val"].stride() != node.meta["val"].stride():
                for user in node.users:
                    moved.setdefault(user, {})[rest] = node.meta["val"]
            node.replace_all_uses_with(rest)
        else:
            for each in [n for n in node.all_input_nodes if n in zeros]:
                made = _zeros_like(graph, node, each)
                if made is None:
                    return None
                node.replace_input_with(each, made)
    graph.eliminate_dead_code()
    if any(placeholders[i].users for i in absent):
        return None
    if moved and not follow_layouts(graph, moved):
        return None
    return ReadGraph(backward, graph)


def _is_sum(node: fx.Node) -> bool:
    return node.target is _aten.add.Tensor and not node.kwargs


def _rest_of_sum(node: fx.Node, zeros: set[fx.Node], *, as_it_lies: bool) -> fx.Node | None:
    """The term of a sum that is no zero, if the sum is like it in all but its values, or, with
    `as_it_lies`, its strides."""
    if not _is_sum(node):
        return None
    terms = [each for each in node.args if each not in zeros]
    if len(terms) != 1 or not isinstance(terms[0], fx.Node):
        return None
    term, total = terms[0].meta.get("val"), node.meta.get("val")
    alike = (
        isinstance(term, torch.Tensor)
        and isinstance(total, torch.Tensor)
        and are_alike(term, total)
        and (as_it_lies or term.stride() == total.stride())
    )
    return terms[0] if alike else None


def _zeros_like(graph: fx.Graph, before: fx.Node, zero: fx.Node) -> fx.Node | None:
    """A call that makes what `zero` stands for; None where its layout is not known, or has gaps."""
    value = zero.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return None
    if not all(isinstance(size, int) for size in value.shape):
        return None
    order = by_stride(value)
    ordered = value.permute(order)
    if not ordered.is_contiguous():
        return None
    with graph.inserting_before(before):
        made = graph.call_function(
            _aten.zeros.default,
            (list(ordered.shape),),
            {"dtype": value.dtype, "device": value.device},
        )
        made.meta = {"val": ordered}
        if order != sorted(order):
            made = graph.call_function(_aten.permute.default, (made, inverse(order)))
    made.meta = {"val": value}
    return made
