"""Examples of what nodes give, for a graph that came without: one that was read from a file.

torchtitan's precompiled artifacts leave them out, since they hold meshes and groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from ..errors import ExportError
from ..torch_api.compiled_code import UnknownCode
from ..torch_api.dispatch import without_modes
from ..torch_api.fake_tensors import FakeTensorMode
from ..torch_api.inductor import is_compiled_region
from ..torch_api.operators import pytree
from .code_effects import results_of

_KEPT = "gravure_results"


def has_examples(module: fx.GraphModule) -> bool:
    """Whether each placeholder that is used has one: then other nodes have, too."""
    nodes = module.graph.nodes
    return all("val" in n.meta for n in nodes if n.op == "placeholder" and n.users)


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
