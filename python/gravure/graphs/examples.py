"""Examples of what nodes give, where they came without: in a graph that was read from a file, or of
nodes that a pass has put in.

torchtitan's precompiled artifacts leave them out, since they hold meshes and groups. A pass may
forget them (PyTorch's `micro_pipeline_tp_pass`): sizes would be known only at run time, and what
reads such a node would run uncaptured.
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from ..errors import ExportError
from ..torch_api.compiled_code import UnknownCode
from ..torch_api.dispatch import without_modes
from ..torch_api.fake_tensors import FakeTensorMode, mode_of_any
from ..torch_api.inductor import is_compiled_region
from ..torch_api.operators import OpOverload, pytree
from .code_effects import results_of
from .node_facts import READS

_KEPT = "gravure_results"
logger = logging.getLogger("gravure")


def has_examples(module: fx.GraphModule) -> bool:
    """Whether each placeholder that is used has one: then other nodes have, too."""
    nodes = module.graph.nodes
    return all("val" in n.meta for n in nodes if n.op == "placeholder" and n.users)


def complete_examples(module: fx.GraphModule) -> None:
    """Gives calls of operators without one what they make of their operands'. One that has no
    stand-ins, or asks for values, stays without."""
    known = [n.meta["val"] for n in module.graph.nodes if "val" in n.meta]
    with without_modes(), torch.no_grad(), mode_of_any(pytree.tree_leaves(known)):
        for node in module.graph.nodes:
            if "val" in node.meta or not _is_operator(node):
                continue
            if not all("val" in operand.meta for operand in node.all_input_nodes):
                continue
            args, kwargs = fx.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
            try:
                node.meta["val"] = node.target(*args, **kwargs)
            except Exception as error:  # what follows it is of unknown sizes, as it was
                logger.debug("no example of %s: %r", node, error)


def _is_operator(node: fx.Node) -> bool:
    if node.op != "call_function" or any(tag in getattr(node.target, "tags", ()) for tag in READS):
        return False
    return node.target is operator.getitem or isinstance(node.target, OpOverload)


def add_examples(module: fx.GraphModule, args: Sequence[Any]) -> None:
    """Gives nodes those of a call with these arguments. Raises ExportError for a compiled region of
    which nobody kept any, and whose code does not tell."""
    with without_modes(), torch.no_grad(), FakeTensorMode(allow_non_fake_inputs=True) as mode:
        given = [_example(mode, arg) for arg in args]
        _Examples(module).run(*given)


def _example(mode: FakeTensorMode, arg: Any) -> Any:
    return mode.from_tensor(arg.detach(), static_shapes=True) if isinstance(arg, Tensor) else arg


def keep_example(node: fx.Node) -> None:
    """Notes that of a region in a form that files keep: a region cannot be run on stand-ins."""
    example = node.meta.get("val")
    if example is not None:
        node.meta[_KEPT] = pytree.tree_map_only(Tensor, _Kept.of, example)


@dataclass(frozen=True)
class _Kept:
    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, tensor: Tensor) -> _Kept:
        return cls(tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device)

    def example(self) -> Tensor:
        return torch.empty_strided(self.size, self.stride, dtype=self.dtype, device=self.device)


def _of_region(node: fx.Node, args: Sequence[Any]) -> Any:
    """What was kept of it, or what its code makes of these arguments."""
    if _KEPT in node.meta:
        return pytree.tree_map_only(_Kept, _Kept.example, node.meta[_KEPT])
    try:
        return results_of(node.target, args)
    except UnknownCode as unknown:
        raise ExportError(
            f"%{node.name}",
            f"what it returns is not known: regions like it {unknown}",
            "make the artifact with --module gravure.torchtitan",
        ) from unknown


class _Examples(fx.Interpreter):
    def run_node(self, n: fx.Node) -> Any:
        if is_compiled_region(n.target):
            found = _of_region(n, self.fetch_args_kwargs_from_env(n)[0])
        else:
            found = super().run_node(n)
        if n.op != "output":
            n.meta["val"] = found
        return found
