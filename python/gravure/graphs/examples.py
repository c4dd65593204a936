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
from ..torch_api.dispatch import without_modes
from ..torch_api.fake_tensors import FakeTensorMode
from ..torch_api.inductor import is_compiled_region
from ..torch_api.operators import pytree

_KEPT = "gravure_results"


def has_examples(module: fx.GraphModule) -> bool:
    """Whether each placeholder that is used has one: then other nodes have, too."""
    nodes = module.graph.nodes
    return all("val" in n.meta for n in nodes if n.op == "placeholder" and n.users)


def add_examples(module: fx.GraphModule, args: Sequence[Any]) -> None:
    """Gives nodes those of a call with these arguments. Raises ExportError for a compiled region of
    which nobody kept any."""
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


def _kept(node: fx.Node) -> Any:
    if _KEPT not in node.meta:
        raise ExportError(
            f"%{node.name}",
            "it was compiled elsewhere, and what it returns is not known",
            "make the artifact with --module gravure.torchtitan",
        )
    return pytree.tree_map_only(_Kept, _Kept.example, node.meta[_KEPT])


class _Examples(fx.Interpreter):
    def run_node(self, n: fx.Node) -> Any:
        found = _kept(n) if is_compiled_region(n.target) else super().run_node(n)
        if n.op != "output":
            n.meta["val"] = found
        return found
