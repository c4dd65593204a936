"""Regions of a graph that somebody else has Inductor compile, before the graph comes here.

`torch.fx.passes.regional_inductor` takes the marked nodes out and leaves one call of compiled code
for each region. A program can carry such a call (compiled_ops.py) where the region only computes.
That is seen in its nodes alone, and these are gone afterwards: so who calls that pass looks first.
"""

from __future__ import annotations

import torch
from torch import fx

from ..torch_api.inductor import is_compiled_region
from ..torch_api.operators import higher_order_name
from .node_facts import is_collective, is_free, is_inductors_own, schema, writes

_MARK = "compile_with_inductor"  # PyTorch's, in meta["custom"]
_CARRIED = "gravure_carried"


class MarkedRegions:
    """What the regions of one graph do beside computing."""

    def __init__(self) -> None:
        # Why a program cannot carry them; "" if it can.
        self.obstacle = "they were compiled elsewhere, so nobody knows what they write or draw"

    def note(self, module: fx.GraphModule, *, whole: bool) -> None:
        """Before they are compiled. `whole`: all of the graph becomes one region."""
        self.obstacle = next(filter(None, map(_obstacle, _marked(module, whole))), "")

    def allow(self, module: fx.GraphModule) -> int:
        """Lets a program carry the regions, if it can; how many there are."""
        found = [n for n in module.graph.nodes if is_compiled_region(n.target)]
        for node in found if not self.obstacle else ():
            node.meta[_CARRIED] = True
        return len(found)


def may_be_carried(node: fx.Node) -> bool:
    return _CARRIED in node.meta


def _marked(module: fx.GraphModule, whole: bool) -> list[fx.Node]:
    modules = [m for m in module.modules() if isinstance(m, fx.GraphModule)]
    calls = [n for m in modules for n in m.graph.nodes if n.op == "call_function"]
    return [n for n in calls if whole or _MARK in (n.meta.get("custom") or {})]


def _obstacle(node: fx.Node) -> str:
    if is_collective(node):
        return f"{node.target} in them communicates"
    if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()):
        return f"{node.target} in them draws random numbers"
    if node.target is torch.ops.aten._local_scalar_dense.default:
        return f"{node.target} in them reads on the host"
    is_number = is_free(node) and schema(node) is None and not higher_order_name(node.target)
    if not is_number and not is_inductors_own(node) and writes(node):
        return f"{node.target} in them may write"
    return ""
