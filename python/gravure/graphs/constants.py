"""What a graph computes of its constants alone is computed once, when the graph is compiled.

`torch.tensor(0.5, device="cuda")` in a forward is a copy from the CPU in each step, which cannot be
captured. Folded, it is a constant of the program on the GPU.

    %c : Double(device=cpu)    get_attr _tensor_constant0      %k : Float(device=cuda)
    %l = lift_fresh_copy(%c)                              =>      get_attr _folded0
    %k = _to_copy(%l, device=cuda)                             %y = mul(%x, %k)
    %y = mul(%x, %k)
"""

from __future__ import annotations

import logging
import operator
from typing import Any

import torch
from torch import Tensor, fx

from ..torch_api.dispatch import plainly, without_modes
from ..torch_api.fake_tensors import has_no_memory, mode_of
from ..torch_api.inductor import replace_node_with_constant
from .node_facts import (
    is_on_cpu,
    is_random,
    is_view,
    runs_on_cpu,
    takes_member,
    tensors,
    writes,
)
from .partition import drop_outputs

logger = logging.getLogger("gravure")
aten = torch.ops.aten

_MOST_BYTES = 1 << 20  # of one constant: a larger one may be meant to be computed in each step
_NAME = "_folded"
_LIFTS = (aten.lift_fresh_copy.default, aten.lift_fresh.default)
# Operators that copy a CPU operand to the device; others read its number on the host.
_COPIES = (aten.where.self, aten.index.Tensor, aten.index_put.default)


def _is_made(constant: fx.Node) -> bool:
    """Whether the traced code made it: tracing lifts such a one. Another constant may be a tensor
    that somebody writes."""
    return all(user.target in _LIFTS for user in constant.users)


def _is_number(node: fx.Node) -> bool:
    """A tensor of the CPU's without dimensions."""
    return is_on_cpu(node) and all(tensor.dim() == 0 for tensor in tensors(node))


def _kept(module: fx.GraphModule) -> set[fx.Node]:
    """What is written, or returned (to a caller who may write it), and what that is a view of:
    each step has its own.
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
    """Before AOTAutograd's graph is cut. What needs a device that is missing stays as it is."""
    with without_modes(), plainly():
        try:
            values = _values(module)
        except Exception as error:  # a graph traced for a device that is not here
            logger.debug("constants are not folded: %r", error)
            return
        if not values:
            return
        wanted = [node for node in values if any(user not in values for user in node.users)]
        computed = [n for n in wanted if n.op == "call_function" and isinstance(values[n], Tensor)]
        for i, node in enumerate(computed):
            replace_node_with_constant(module, node, values[node], f"{_NAME}{i}")
        try:
            _move_constants(module)
        except (AssertionError, RuntimeError) as error:  # as above, or a torch without CUDA
            logger.debug("constants of the CPU stay there: %r", error)
    for node in reversed(module.graph.nodes):
        if not node.users and (node in values or _is_folded(node)):
            module.graph.erase_node(node)
    module.recompile()


def _values(module: fx.GraphModule) -> dict[fx.Node, Any]:
    """What is known of the nodes: constants that the traced code made, and what follows of them."""
    values: dict[fx.Node, Any] = {}
    kept, on_cpu = _kept(module), runs_on_cpu(module)
    for node in module.graph.nodes:
        if node.op == "get_attr" and _is_made(node):
            values[node] = operator.attrgetter(str(node.target))(module)
        if node.op != "call_function" or node in kept or not _is_computation(node):
            continue
        operands = node.all_input_nodes
        # A kernel that fills is faster than one that reads, but for a number that it takes itself.
        factory = not operands and not on_cpu and _is_number(node)
        if factory or (operands and all(operand in values for operand in operands)):
            args, kwargs = fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
            value = node.target(*args, **kwargs)
            if not isinstance(value, Tensor) or value.untyped_storage().nbytes() <= _MOST_BYTES:
                values[node] = value
    return values


def _is_computation(node: fx.Node) -> bool:
    """PyTorch's own, which does nothing else and draws nothing."""
    if takes_member(node):
        return True
    own = getattr(node.target, "namespace", "") in ("aten", "prims")
    return own and not writes(node) and not is_random(node)


def _move_constants(module: fx.GraphModule) -> None:
    """Puts constants of the CPU where their operator would copy them to, in each step."""
    for node in module.graph.nodes:
        if node.target not in _COPIES or is_on_cpu(node) or _is_masked_fill(node):
            continue
        (device,) = {tensor.device for tensor in tensors(node)}
        for operand in node.all_input_nodes:
            if not _is_folded(operand) or not is_on_cpu(operand):
                continue
            name = f"{operand.target}_moved"
            module.register_buffer(name, getattr(module, operand.target).to(device))
            with module.graph.inserting_before(node):
                moved = module.graph.get_attr(name)
            value = operand.meta["val"]
            with mode_of(value):
                moved.meta["val"] = value.to(device)
            node.replace_input_with(operand, moved)


def _is_folded(node: Any) -> bool:
    return (
        isinstance(node, fx.Node) and node.op == "get_attr" and str(node.target).startswith(_NAME)
    )


def _is_masked_fill(node: fx.Node) -> bool:
    """`x[mask] = number`, whose number the host reads."""
    if node.target is not aten.index_put.default:
        return False
    indices = [tensor for index in node.args[1] if index for tensor in tensors(index)]
    return [index.dtype for index in indices] == [torch.bool]


def share_constants(forward: fx.GraphModule, backward: fx.GraphModule, outputs: int) -> None:
    """Constants that the forward saves, behind its own `outputs`, are the backward's own, too."""
    _remake_zeros(forward, backward, outputs)
    results = list(enumerate(forward.graph.output_node().args[0]))
    saved = {i: node for i, node in results[outputs:] if _is_folded(node)}
    if not saved:
        return
    names = {node.name: str(node.target) for node in saved.values()}
    taken = backward.graph.find_nodes(op="placeholder")
    for node in taken:
        if node.name in names:
            name = names[node.name]
            taken[-1].append(node)  # a tangent, or a random state: behind what the backward takes
            replace_node_with_constant(backward, node, getattr(forward, name), name)
    drop_outputs(forward, saved)
    backward.recompile()


def _remake_zeros(forward: fx.GraphModule, backward: fx.GraphModule, outputs: int) -> None:
    """Zeros without memory, as forward-mode AD has them, are made where they are needed: kept in
    memory, they would be a tensor that has none."""
    results = list(enumerate(forward.graph.output_node().args[0]))
    saved = {i: node for i, node in results[outputs:] if _are_zeros_of_known_sizes(node)}
    if not saved:
        return
    names = {node.name for node in saved.values()}
    taken = backward.graph.find_nodes(op="placeholder")
    for node in taken:
        if node.name in names:
            value = node.meta["val"]
            taken[-1].append(node)
            with backward.graph.inserting_after(node):
                made = backward.graph.call_function(
                    aten._efficientzerotensor.default,
                    (list(value.shape),),
                    {"dtype": value.dtype, "device": value.device},
                )
            made.meta = dict(node.meta)
            node.replace_all_uses_with(made)
            backward.graph.erase_node(node)
    drop_outputs(forward, saved)
    for node in reversed(forward.graph.nodes):
        if not node.users and has_no_memory(node.meta.get("val")) and node.op != "placeholder":
            forward.graph.erase_node(node)
    forward.recompile()
    backward.recompile()


def _are_zeros_of_known_sizes(node: Any) -> bool:
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    return has_no_memory(value) and all(isinstance(size, int) for size in value.shape)


def reunite_constants(forward: fx.GraphModule, backward: fx.GraphModule) -> None:
    """AOTAutograd hands over a copy of the backward, and of its constants."""
    for node in backward.graph.find_nodes(op="get_attr"):
        name = str(node.target)
        if isinstance(getattr(forward, name, None), Tensor):
            setattr(backward, name, getattr(forward, name))
