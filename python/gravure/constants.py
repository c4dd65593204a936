"""What a graph computes of its constants alone is computed once, when the graph is compiled.

`torch.tensor(0.5, device="cuda")` in a forward is a copy from the CPU in each step, which cannot be
captured. Folded, it is a constant of the program on the GPU.

    %c : Double(device=cpu)    get_attr _tensor_constant0      %k : Float(device=cuda)
    %l = lift_fresh_copy(%c)                              =>      get_attr _constant0
    %k = _to_copy(%l, device=cuda)                             %y = mul(%x, %k)
    %y = mul(%x, %k)
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Container
from typing import Any

import torch
from torch import Tensor, fx
from torch._inductor.constant_folding import ConstantFolder, replace_node_with_constant
from torch.utils._python_dispatch import _disable_current_modes

from .node_facts import is_view, writes

logger = logging.getLogger("gravure")

_MOST_BYTES = 1 << 20  # of one constant: a larger one may be meant to be computed in each step
_FOLDED = ("aten", "prims")
_LIFTS = (torch.ops.aten.lift_fresh_copy.default, torch.ops.aten.lift_fresh.default)


class _Folder(ConstantFolder):
    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module, skip_constructors=True)
        self._kept = _kept(module)
        self.computed: set[fx.Node] = set()  # and constants

    def _deduce_value(self, node: fx.Node) -> Any:
        if not (_is_made(node) if node.op == "get_attr" else self._may_be_folded(node)):
            return self.unknown_value
        value = super()._deduce_value(node)
        if isinstance(value, Tensor) and value.untyped_storage().nbytes() > _MOST_BYTES:
            return self.unknown_value
        self.computed.add(node)
        return value

    def _may_be_folded(self, node: fx.Node) -> bool:
        if node in self._kept:
            return False
        if node.target is operator.getitem:
            return True
        return getattr(node.target, "namespace", "") in _FOLDED and not writes(node)


def _is_made(constant: fx.Node) -> bool:
    """By the code that was traced. Another one may be somebody's, who writes it between steps."""
    return all(user.target in _LIFTS for user in constant.users)


def _kept(module: fx.GraphModule) -> set[fx.Node]:
    """What is written, or returned: the caller may write that, and has it for himself in each step.

    With what it is a view of.
    """
    pending = list(module.graph.output_node().all_input_nodes)
    for node in module.graph.nodes:
        if node.op == "call_function" and writes(node):
            pending += node.all_input_nodes
    kept = set()
    while pending:
        node = pending.pop()
        if node not in kept:
            kept.add(node)
            pending += node.all_input_nodes if is_view(node) else []
    return kept


def fold_constants(module: fx.GraphModule) -> None:
    """Before AOTAutograd's graph is cut. Where the device is missing the graph stays as it is."""
    if not module.graph.find_nodes(op="get_attr"):
        return
    with _disable_current_modes():
        folder = _Folder(module)
        try:
            folder.run()
        except Exception as error:  # a graph traced for a device that is not here
            logger.debug("constants are not folded: %r", error)
            return
        for i, (node, constant) in enumerate(folder.node_replacements.items()):
            replace_node_with_constant(module, node, constant, f"_constant{i}")
    for node in reversed(module.graph.nodes):
        if node in folder.computed and not node.users:
            module.graph.erase_node(node)
    module.recompile()


def share_constants(forward: fx.GraphModule, backward: fx.GraphModule, outputs: int) -> None:
    """Constants that the forward saves, behind its own `outputs`, are the backward's own, too."""
    end = forward.graph.output_node()
    saved = {node.name: node for node in end.args[0][outputs:] if _is_constant(node)}
    for place in backward.graph.find_nodes(op="placeholder"):
        if place.name in saved:
            constant = getattr(forward, saved[place.name].target)
            replace_node_with_constant(backward, place, constant, saved[place.name].target)
    last = backward.graph.find_nodes(op="placeholder")[-1]
    for node in backward.graph.find_nodes(op="get_attr"):
        if node < last:
            last.append(node)
    dropped = {i for i, node in enumerate(end.args[0]) if i >= outputs and _is_constant(node)}
    drop_outputs(forward, dropped)
    backward.recompile()


def reunite_constants(forward: fx.GraphModule, backward: fx.GraphModule) -> None:
    """AOTAutograd hands over a copy of the backward, and of its constants."""
    for node in backward.graph.find_nodes(op="get_attr"):
        name = str(node.target)
        if isinstance(getattr(forward, name, None), Tensor):
            setattr(backward, name, getattr(forward, name))


def _is_constant(node: Any) -> bool:
    return isinstance(node, fx.Node) and node.op == "get_attr"


def drop_outputs(module: fx.GraphModule, dropped: Container[int]) -> None:
    end = module.graph.output_node()

    def kept(values: Any) -> Any:
        return type(values)(value for i, value in enumerate(values) if i not in dropped)

    end.args = (kept(end.args[0]),)
    if end.meta.get("desc") is not None:
        end.meta["desc"] = kept(end.meta["desc"])
    module.recompile()
