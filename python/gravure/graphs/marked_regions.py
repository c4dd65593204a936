"""Regions of a graph that somebody else has Inductor compile, before the graph comes here.

`torch.fx.passes.regional_inductor` takes the marked nodes out and leaves one call of compiled code
for each region. A program can carry such a call (compiled_ops.py) where the region only computes,
or is all of the graph and communicates as a program might itself (region_collectives.py).
That is seen in its nodes, and these are gone afterwards: so who calls that pass looks first. Of
regions that came compiled, Inductor's code is asked (code_effects.py).
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor, fx

from ..torch_api.inductor import is_compiled_region
from ..torch_api.operators import higher_order_name
from .code_effects import operators_of
from .examples import keep_example
from .node_facts import (
    COMMUNICATES,
    READS,
    costs_nothing,
    is_collective,
    is_inductors_own,
    is_random,
    is_view,
    schema,
    writes,
)
from .region_collectives import Collective, collectives_of

_MARK = "compile_with_inductor"  # PyTorch's, in meta["custom"]
_CARRIED = "gravure_carried"  # in meta, also of files; its value: whether they draw


class RegionEffects:
    """What the regions of one graph do beside computing, as far as somebody has looked."""

    def __init__(self) -> None:
        # Why a program cannot carry them; "" if it can.
        self.obstacle = "they were compiled elsewhere, so nobody knows what they write or draw"
        self.draws = False  # from the default generators, some of them
        self.collectives: list[Collective] = []  # of the one that is all of the graph
        self._looked = False
        self._came_compiled: list[Any] = []  # seen by nobody, though others were looked at

    def look_at(self, module: fx.GraphModule, *, whole: bool) -> None:
        """Looks at the regions before they are compiled; `whole`: all of the graph becomes one."""
        if not self._looked:
            self._came_compiled = [n.target for n in _compiled(module) if not may_be_carried(n)]
        nodes = _marked(module, whole)
        collectives, found = collectives_of(module) if whole else ([], "")
        found = found or next(filter(None, (_obstacle(n, whole) for n in nodes)), "")
        self.collectives += collectives
        self.obstacle = self.obstacle if self._looked and self.obstacle else found
        self._looked = True
        self.draws = self.draws or any(map(is_random, nodes))

    def allow(self, module: fx.GraphModule) -> int:
        """Lets a program carry the regions, if it can. Returns how many there are.

        Those of a graph from a file carry a mark of it, where they were looked at before. Others
        that nobody looked at are judged by their code.
        """
        found = _compiled(module)
        unmarked = [n for n in found if not may_be_carried(n)]
        came = [n for n in unmarked if not self._looked or n.target in self._came_compiled]
        if not unmarked or not self._looked:
            self.obstacle = ""
        if self.collectives and len(unmarked) - len(came) > 1:
            self.obstacle = self.obstacle or "it is not known which of them communicates"
        drawing = {node: self._read(node) for node in came if not self.obstacle}
        for node in unmarked if not self.obstacle else ():
            node.meta[_CARRIED] = drawing.get(node, self.draws)
            if self.collectives and node not in drawing:
                node.meta[COMMUNICATES] = list(self.collectives)
            keep_example(node)
        return len(found)

    def _read(self, node: fx.Node) -> bool:
        """Looks at what the code of a region calls. Returns whether it draws."""
        calls, unknown = operators_of(node.target)
        found = next(filter(None, map(_obstacle_in_code, calls)), "")
        self.obstacle = found or (f"they {unknown}" if unknown else "")
        return any(map(is_random, calls))


def may_be_carried(node: fx.Node) -> bool:
    """Whether a program may call this compiled region."""
    return _CARRIED in node.meta


def may_draw(node: fx.Node) -> bool:
    """Whether a region that may be carried draws from the default generators."""
    return bool(node.meta.get(_CARRIED))


def communicated_by(node: fx.Node) -> list[Collective]:
    """What a region that may be carried communicates."""
    return [(group, text) for group, text in node.meta.get(COMMUNICATES, ())]


def _compiled(module: fx.GraphModule) -> list[fx.Node]:
    return [n for n in module.graph.nodes if is_compiled_region(n.target)]


def _marked(module: fx.GraphModule, whole: bool) -> list[fx.Node]:
    modules = [m for m in module.modules() if isinstance(m, fx.GraphModule)]
    calls = [n for m in modules for n in m.graph.nodes if n.op == "call_function"]
    return [n for n in calls if whole or _MARK in (n.meta.get("custom") or {})]


def _obstacle(node: fx.Node, whole: bool) -> str:
    if is_collective(node) and not whole:  # else collectives_of() has looked
        return f"{node.target} in them communicates"
    if is_random(node) and node.kwargs.get("generator") is not None:
        return f"{node.target} in them draws from a generator of its own"
    if _reads(node):
        return f"{node.target} in them reads on the host"
    is_number = costs_nothing(node) and schema(node) is None and not higher_order_name(node.target)
    if whole and _writes_into_its_own(node):
        return ""
    if not is_number and not is_inductors_own(node) and writes(node):
        return f"{node.target} in them may write"
    return ""


def _obstacle_in_code(node: fx.Node) -> str:
    """Of an operator that compiled code calls, whose own memory is its own affair."""
    if is_collective(node):
        return f"{node.target} in them communicates"
    return _obstacle(node, whole=True)


def _reads(node: fx.Node) -> bool:
    """Whether it waits for a value of the device. Indexing does where an index is a mask, whose
    elements are counted: flex attention's masks take theirs by numbers."""
    if not any(tag in getattr(node.target, "tags", ()) for tag in READS):
        return False
    if node.target is not torch.ops.aten.index.Tensor:
        return True
    indices = [index for index in node.args[1] if index is not None]  # type: ignore[union-attr]
    examples = [i.meta.get("val") if isinstance(i, fx.Node) else None for i in indices]
    masks = (torch.bool, torch.uint8)
    return not all(isinstance(e, Tensor) and e.dtype not in masks for e in examples)


def _writes_into_its_own(node: fx.Node) -> bool:
    """Into what the graph itself has made, and nobody outside sees before it is whole."""
    found = schema(node)
    if found is None or not found.is_mutable:
        return False
    given = dict(zip((a.name for a in found.arguments), node.args, strict=False)) | node.kwargs
    written = [a.name for a in found.arguments if a.alias_info and a.alias_info.is_write]
    return all(_is_made_here(given.get(name)) for name in written)


def _is_made_here(value: Any) -> bool:
    """Whether a tensor, or each of a list, lies in memory that a call of the graph has made."""
    if isinstance(value, (list, tuple)):
        return all(map(_is_made_here, value))
    while isinstance(value, fx.Node) and value.op == "call_function":
        found = schema(value)
        shares = found is not None and any(r.alias_info is not None for r in found.returns)
        if not shares and not is_view(value) and value.target is not operator.getitem:
            return found is not None
        value = value.args[0] if value.args else None
    return False
