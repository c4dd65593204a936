"""Examples of what nodes give, for a graph that came without: one that was read from a file.

torchtitan's precompiled artifacts leave them out, since they hold meshes and groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx

from ..errors import ExportError
from ..torch_api.dispatch import without_modes
from ..torch_api.fake_tensors import FakeTensorMode
from ..torch_api.inductor import is_compiled_region


def has_examples(module: fx.GraphModule) -> bool:
    nodes = module.graph.nodes
    return all("val" in n.meta for n in nodes if n.op == "placeholder" and n.users)


def add_examples(module: fx.GraphModule, args: Sequence[Any]) -> None:
    """Those of a call with these arguments. ExportError where a node has none."""
    with without_modes(), torch.no_grad(), FakeTensorMode(allow_non_fake_inputs=True) as mode:
        given = [_example(mode, arg) for arg in args]
        _Examples(module).run(*given)


def _example(mode: FakeTensorMode, arg: Any) -> Any:
    return mode.from_tensor(arg.detach(), static_shapes=True) if isinstance(arg, Tensor) else arg


class _Examples(fx.Interpreter):
    def run_node(self, n: fx.Node) -> Any:
        if is_compiled_region(n.target):
            raise ExportError(
                f"%{n.name}",
                "it was compiled elsewhere, and what it returns is not known",
                "leave out the passes that compile regions",
            )
        found = super().run_node(n)
        if n.op != "output":
            n.meta["val"] = found
        return found
