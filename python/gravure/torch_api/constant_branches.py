"""A branch on what code makes of whole numbers alone goes one way, and Dynamo traces on there.

    positions = torch.arange(x.shape[1])  # no input: its values are known
    if (positions.diff() == 1).all():

Libraries have such branches where they are not told that they are compiled (whether_compiled.py):
those of transformers look so whether sequences are packed. Dynamo breaks its graph at each branch
on a tensor; the values are computed here instead. Whole numbers only: neither autocast nor an order
of additions changes them.

Private: Dynamo's `InstructionTranslatorBase` has the table of jumps, whose operands are
`TensorVariable`s; `ConstantVariable` stands for a decided one. Without them the graph breaks there.
`peek_interpreter_stack` sees a transform of functorch's, `_disable_current_modes` and
`DisableTorchFunction` have values computed, a `TorchDispatchMode` refuses those that may vary.
`_ops.HigherOrderOperator` and `_schema` say what may write; without them nothing is decided.
"""

from __future__ import annotations

import dis
import logging
import operator
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, fx

from .private_names import (
    ConstantVariable,
    DisableTorchFunction,
    HigherOrderOperator,
    InstructionTranslatorBase,
    MissingName,
    TensorVariable,
    TorchDispatchMode,
    _disable_current_modes,
    peek_interpreter_stack,
)

logger = logging.getLogger("gravure")

_MOST_BYTES = 1 << 20  # of one tensor, as of other constants
# `a += b` and its like: each has an operator of the same name without the i.
_IN_PLACE = {
    function
    for name, function in vars(operator).items()
    if name.startswith("__i") and hasattr(operator, name.replace("__i", "__", 1))
}
_JUMPS = [code for name, code in dis.opmap.items() if "JUMP" in name and "_IF_" in name]


def decide_constant_branches(
    is_ours: Callable[[Any], bool], undecided: Callable[[Any], None]
) -> None:
    """Has Dynamo do so where `is_ours` says that the backend is one of Gravure's.

    `undecided` is given Dynamo's translator at a branch on data, and may raise.
    """
    try:
        for translator in _with_subclasses(InstructionTranslatorBase):
            for code in _JUMPS:
                jump = translator.dispatch_table[code]
                translator.dispatch_table[code] = _deciding(jump, is_ours, undecided)
    except (AttributeError, IndexError, TypeError, MissingName) as error:
        logger.warning("this PyTorch breaks graphs at branches on constants: %r", error)


def _with_subclasses(kind: type) -> Iterator[Any]:
    yield kind
    for further in kind.__subclasses__():
        yield from _with_subclasses(further)


def _deciding(
    jump: Callable[..., Any], is_ours: Callable[[Any], bool], undecided: Callable[[Any], None]
) -> Callable[..., Any]:
    def decide(tx: Any, inst: Any) -> Any:
        value = tx.stack[-1]
        if type(value) is not TensorVariable or not is_ours(tx.output.compiler_fn):
            return jump(tx, inst)
        known = _truth(value.as_proxy().node)
        if known is None:
            undecided(tx)
            return jump(tx, inst)
        stand_in = ConstantVariable.create(known)
        tx.stack[-1] = stand_in
        result = jump(tx, inst)
        if tx.stack and tx.stack[-1] is stand_in:  # `a or b` is the tensor
            tx.stack[-1] = value
        return result

    return decide


def _truth(node: fx.Node) -> bool | None:
    """None where it takes more than whole numbers, or may be another one in the next call."""
    example = node.meta.get("example_value")
    if not isinstance(example, Tensor) or example.numel() != 1:
        return None
    if peek_interpreter_stack() is not None:
        return None
    needed = {node}
    pending = [node]
    while pending:
        found = pending.pop()
        if found.op not in ("call_function", "call_method") or not _is_whole(found):
            return None
        for operand in found.all_input_nodes:
            if operand not in needed:
                needed.add(operand)
                pending.append(operand)
    nodes = [n for n in node.graph.nodes if n in needed]
    if _may_be_written(node.graph, needed):
        return None
    values: dict[fx.Node, Any] = {}
    try:
        with _disable_current_modes(), DisableTorchFunction(), torch.no_grad(), _Pure():
            for n in nodes:
                args, kwargs = fx.map_arg((n.args, n.kwargs), values.__getitem__)
                if n.op == "call_method":
                    values[n] = getattr(args[0], str(n.target))(*args[1:], **kwargs)
                else:
                    values[n] = n.target(*args, **kwargs)  # type: ignore[operator]
            return bool(values[node])
    except Exception as error:  # then the graph breaks there, as it would have
        logger.debug("a branch on constants is not decided: %r", error)
        return None


def _is_whole(node: fx.Node) -> bool:
    example = node.meta.get("example_value")
    found = example if isinstance(example, (tuple, list)) else [example]
    return bool(found) and all(
        isinstance(value, Tensor)
        and type(value.numel()) is int
        and not value.dtype.is_floating_point
        and not value.dtype.is_complex
        and value.numel() * value.itemsize <= _MOST_BYTES
        for value in found
    )


def _may_be_written(graph: fx.Graph, needed: set[fx.Node]) -> bool:
    """Whether the graph may write into one of them: it may write into what is computed of it."""
    computed = set(needed)
    for node in graph.nodes:
        if node not in computed and computed.isdisjoint(node.all_input_nodes):
            continue
        computed.add(node)
        name = getattr(node.target, "__name__", str(node.target))
        schema = getattr(node.target, "_schema", None)
        if (
            node.op == "call_module"
            or isinstance(node.target, HigherOrderOperator)
            or "out" in node.kwargs
            or name == "setitem"
            or (name.endswith("_") and not name.endswith("__"))
            or node.target in _IN_PLACE
            or (schema is not None and schema.is_mutable)
        ):
            return True
    return False


class _Pure(TorchDispatchMode):
    """Refuses what draws, and what has memory of unknown values."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if torch.Tag.nondeterministic_seeded in func.tags or "empty" in func.__name__:
            raise ValueError(f"{func} may give other values in the next call")
        return func(*args, **(kwargs or {}))
