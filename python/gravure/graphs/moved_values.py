"""A graph some of whose values lie otherwise in memory than they did while it was traced.

    %g : 7x5, row by row, as it was traced                   column by column, as it lies
    %s = aten::slice(%g, -2, 0, 5)    5x5, strides [5, 1]  =>  strides [1, 7]
    %v = aten::view(%s, [25])                              =>  of a copy of %s, row by row; and a
                                                               copy for a view is none any more
    %n = aten::native_group_norm_backward(%g, …)           =>  of a copy of %g, row by row

Kernels that sum may do it in another order for another layout, so eager's bits are those of eager's
layout. What Python or C++ did with a layout while it traced is in no graph: a `contiguous()` that
had nothing to do, and is a copy now. ATen's public operators take any layout; those of its own
(`_…`, `…_backward`) and other libraries' may rely on such a copy, so they are given what is
contiguous, or copies that lie as they were traced.
"""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, fx

from ..torch_api.compile_lock import compile_lock
from ..torch_api.eager_layouts import eager_layouts
from ..torch_api.fake_tensors import mode_of, mode_of_any
from ..torch_api.operators import OpOverload, pytree, schema_of

_aten = torch.ops.aten
# Operands of a node that lie otherwise than they were traced, as they were traced.
Traced = dict[fx.Node, Tensor]

# Of ATen's own (below), those that autograd's C++ gives a gradient as it lies.
_AS_IT_LIES = {
    "_fft_c2c",
    "_fft_c2r",
    "_fft_r2c",
    "_log_softmax_backward_data",
    "_softmax_backward_data",
    "_to_copy",
    "_unsafe_view",
    "convolution_backward",
    "cudnn_batch_norm_backward",
    "native_batch_norm_backward",
    "native_layer_norm_backward",
}
_VIEWS = (_aten.view.default, _aten._unsafe_view.default)
# What they return depends on where in memory an element is.
_BY_MEMORY = ("aten.as_strided", "aten._reshape_alias", "aten.view.dtype")


def laid(value: Any, strides: tuple[int, ...]) -> Tensor | None:
    """A stand-in like `value` with these strides; None where sizes are open, or it is no tensor."""
    if not isinstance(value, Tensor) or not all(isinstance(size, int) for size in value.shape):
        return None
    if len(strides) != value.dim():
        return None
    with mode_of(value):
        return torch.empty_strided(value.shape, strides, dtype=value.dtype, device=value.device)


def by_stride(value: Tensor) -> list[int]:
    """Its dimensions, the one with the longest stride first."""
    return sorted(range(value.dim()), key=lambda i: (-value.stride(i), i))


def inverse(order: list[int]) -> list[int]:
    """What permutes back what `order` permuted."""
    return sorted(range(len(order)), key=order.__getitem__)


def are_alike(one: Tensor, other: Tensor) -> bool:
    """The same but for strides and values."""
    return _kind(one) == _kind(other)


def follow_layouts(graph: fx.Graph, moved: Mapping[fx.Node, Traced]) -> bool:
    """Has the nodes of `graph` know how what they compute lies. `moved`: those that an operand of
    theirs lies otherwise for.

    False where it cannot be known: the graph is of no use then.
    """
    todo: defaultdict[fx.Node, Traced] = defaultdict(dict)
    for node, operands in moved.items():
        todo[node].update(operands)
    values = [node.meta.get("val") for node in graph.nodes]
    with compile_lock, eager_layouts(), torch.no_grad(), mode_of_any(values):
        for node in list(graph.nodes):
            if node not in todo or node.op == "output":
                continue
            if (seen := _views_instead(node)) is not None:
                for view, before in seen.items():
                    for user in view.users:
                        todo[user][view] = before
                continue
            before, after = node.meta.get("val"), _value_of(graph, node, todo[node])
            if not _give_alike(before, after):
                return False
            if _strides(before) != _strides(after):
                node.meta["val"] = after
                for user in node.users:
                    todo[user][node] = before
    graph.eliminate_dead_code()
    return True


def _views_instead(node: fx.Node) -> dict[fx.Node, Tensor] | None:
    """A `reshape` that was traced as a copy, and is a view of what lies otherwise now: what it was,
    by the view. None where `node` is no such copy."""
    is_copy = node.kwargs.get("memory_format") is torch.contiguous_format
    if node.target is not _aten.clone.default or not is_copy:
        return None
    if any(user.target is not _aten._unsafe_view.default for user in node.users):
        return None
    (source,) = node.args
    assert isinstance(source, fx.Node)
    try:
        values = {n: _aten.view.default(source.meta["val"], n.args[1]) for n in node.users}
    except Exception:
        return None
    before = {view: view.meta["val"] for view in values}
    for view, value in values.items():
        view.target = _aten.view.default
        view.replace_input_with(node, source)
        view.meta["val"] = value
    return before


def _value_of(graph: fx.Graph, node: fx.Node, traced: Traced) -> Any:
    """None where it cannot be told."""
    if node.target is operator.getitem:
        return _run(node)
    if not isinstance(node.target, OpOverload) or schema_of(node.target).is_mutable:
        return None
    as_it_lies = _takes_any_layout(node.target) or all(map(_is_contiguous, traced))
    if as_it_lies and not _is_by_memory(node):
        try:
            return _run(node)
        except Exception:
            if node.target not in _VIEWS:
                return None
    for operand, value in traced.items():
        if node.target in _VIEWS:  # as `reshape` copies
            order = list(range(operand.meta["val"].dim()))
        elif (known := _order_of(value, node)) is not None:
            order = known
        else:
            return None
        node.replace_input_with(operand, _copy_of(graph, node, operand, order))
    return _run(node)


def _takes_any_layout(op: OpOverload) -> bool:
    if torch.Tag.pointwise in op.tags:
        return True
    name = op.name().removeprefix("aten::").partition(".")[0]
    own = name.startswith("_") or name.endswith("_backward")
    return op.namespace == "aten" and (not own or name in _AS_IT_LIES)


def _is_by_memory(node: fx.Node) -> bool:
    return str(node.target).startswith(_BY_MEMORY)


def _is_contiguous(node: fx.Node) -> bool:
    value = node.meta["val"]
    return isinstance(value, Tensor) and value.is_contiguous()


def _order_of(value: Any, user: fx.Node) -> list[int] | None:
    """The dimensions of `value` by their strides; None where a copy in that order, which has no
    gaps, is not as good for `user`."""
    if not isinstance(value, Tensor):
        return None
    order = by_stride(value)
    dense = value.permute(order).is_contiguous()
    return None if _is_by_memory(user) and not dense else order


def _copy_of(graph: fx.Graph, before: fx.Node, operand: fx.Node, order: list[int]) -> fx.Node:
    """One whose dimensions have strides in that order."""
    calls = [(_aten.clone.default, (), {"memory_format": torch.contiguous_format})]
    if order != sorted(order):
        calls = [
            (_aten.permute.default, (order,), {}),
            *calls,
            (_aten.permute.default, (inverse(order),), {}),
        ]
    copy = operand
    with graph.inserting_before(before):
        for op, args, kwargs in calls:
            copy = graph.call_function(op, (copy, *args), kwargs)
            copy.meta["val"] = _run(copy)
    return copy


def _run(node: fx.Node) -> Any:
    args, kwargs = pytree.tree_map_only(
        fx.Node, lambda operand: operand.meta["val"], (node.args, node.kwargs)
    )
    return node.target(*args, **kwargs)


def _give_alike(before: Any, after: Any) -> bool:
    """Of what a node gives, one value or several."""
    ones, others = pytree.tree_leaves(before), pytree.tree_leaves(after)
    return len(ones) == len(others) and all(map(_is_alike, ones, others))


def _is_alike(one: Any, other: Any) -> bool:
    if not isinstance(one, Tensor) or not isinstance(other, Tensor):
        return isinstance(one, Tensor) == isinstance(other, Tensor)
    return are_alike(one, other)


def _kind(tensor: Tensor) -> Any:
    return tensor.shape, tensor.dtype, tensor.device, tensor.layout


def _strides(value: Any) -> list[Any]:
    return [t.stride() for t in pytree.tree_leaves(value) if isinstance(t, Tensor)]
